-- +goose Up

-- For which Groups Artifact content was stored. The content lies on disk under
-- its hash; a row is what makes it readable through a Group.
CREATE TABLE blobs (
    tree_id        bigint NOT NULL,
    group_id       text COLLATE "C" NOT NULL,
    content_hash   text COLLATE "C" NOT NULL,
    size_bytes     bigint NOT NULL CHECK (size_bytes >= 0),
    stored_by_type text COLLATE "C" NOT NULL,
    stored_by_id   text COLLATE "C" NOT NULL,
    stored_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tree_id, group_id, content_hash)
);
CREATE INDEX blobs_hash ON blobs (content_hash, tree_id);

-- +goose Down
DROP TABLE blobs;
