-- +goose Up

-- Evidence records (aep/v0.3) that the Organization emits: one chain per run,
-- and a run is one Ownership Epoch of a WorkItem.

-- The end of each chain. Whoever appends holds the row, so a chain has no forks;
-- it can be made again from evidence_records. run_id is made of the WorkItem and
-- the epoch; a second unique index on these would race with ON CONFLICT.
CREATE TABLE evidence_runs (
    run_id          text COLLATE "C" PRIMARY KEY,
    group_id        text COLLATE "C" NOT NULL,
    work_item_id    text COLLATE "C" NOT NULL,
    ownership_epoch bigint NOT NULL CHECK (ownership_epoch > 0),
    length          bigint NOT NULL CHECK (length >= 0),
    -- record_hash of the last record, "" before the first.
    head            text COLLATE "C" NOT NULL
) WITH (fillfactor = 70);
CREATE INDEX evidence_runs_group ON evidence_runs (group_id);

-- The records, as signed. record_id is "sha256:" and the record's hash, so the id
-- proves the content and the order follows from prev_record_hash alone.
CREATE TABLE evidence_records (
    run_id         text COLLATE "C" NOT NULL REFERENCES evidence_runs,
    ordinal        bigint NOT NULL CHECK (ordinal > 0),
    record_id      text COLLATE "C" NOT NULL UNIQUE,
    group_id       text COLLATE "C" NOT NULL,
    -- Head of the Group's log when the record was made: a member sees what was
    -- recorded since its visibility began.
    group_sequence bigint NOT NULL CHECK (group_sequence >= 0),
    action_id      text COLLATE "C" NOT NULL,
    -- Set on what a lease admitted, to count its invocations.
    lease_id       text COLLATE "C",
    invocation     bigint,
    -- Digest of the arguments that were observed instead of the approved ones: an
    -- action with these arguments is the re-approved one.
    drifted        text COLLATE "C",
    recorded_at    timestamptz NOT NULL,
    key_id         text COLLATE "C" NOT NULL,
    document       bytea NOT NULL,
    PRIMARY KEY (run_id, ordinal)
);
ALTER TABLE evidence_records ALTER COLUMN document SET STORAGE EXTERNAL;
CREATE INDEX evidence_records_group ON evidence_records (group_id, run_id, ordinal);
CREATE INDEX evidence_records_action ON evidence_records (run_id, action_id);
CREATE INDEX evidence_records_drifted ON evidence_records (run_id, drifted) WHERE drifted IS NOT NULL;
CREATE INDEX evidence_records_lease ON evidence_records (lease_id) WHERE lease_id IS NOT NULL;
CREATE TRIGGER evidence_records_kept BEFORE UPDATE OR DELETE ON evidence_records
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER evidence_records_not_emptied BEFORE TRUNCATE ON evidence_records
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- +goose Down
DROP TABLE evidence_records, evidence_runs;
