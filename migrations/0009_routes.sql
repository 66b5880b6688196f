-- +goose Up

-- Archival and what the reads of the Authority need beside the log.

-- Events of archived Groups that were taken out of the online log, as they were
-- there. It is the audit log: no reader of a Group looks at it, mw verify and mw
-- rebuild do. An Organization whose policy ends its retention may delete here;
-- the Group then rests on its signed snapshot.
CREATE TABLE archived_events (LIKE events INCLUDING CONSTRAINTS);
ALTER TABLE archived_events ADD PRIMARY KEY (tree_id, group_id, sequence);
-- Nobody waits for these bytes, so here they are compressed.
ALTER TABLE archived_events ALTER COLUMN document SET STORAGE EXTENDED;
CREATE TRIGGER archived_events_kept BEFORE UPDATE ON archived_events
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- The whole log of every Group.
CREATE VIEW event_log AS
    SELECT tree_id, group_id, sequence, event_id, kind, occurred_at, command_hash, signing_hash, admission_id,
        admission_key_id, admission_at, admission_by, document FROM events
    UNION ALL
    SELECT tree_id, group_id, sequence, event_id, kind, occurred_at, command_hash, signing_hash, admission_id,
        admission_key_id, admission_at, admission_by, document FROM archived_events;

-- Groups whose archival is not followed by trimming yet. The trigger puts them
-- in with the archival itself, so that no crash loses one; while trimming is off
-- they wait here.
CREATE TABLE trim_queue (
    tree_id  bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (group_id)
);
-- +goose StatementBegin
CREATE FUNCTION mw_group_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO trim_queue (tree_id, group_id) VALUES (NEW.tree_id, NEW.group_id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER missions_archived AFTER INSERT OR UPDATE ON missions
    FOR EACH ROW WHEN (NEW.group_state = 'archived') EXECUTE FUNCTION mw_group_archived();
INSERT INTO trim_queue (tree_id, group_id) SELECT tree_id, group_id FROM missions WHERE group_state = 'archived';

-- What Agents last said of themselves (PROTOCOL.md 6.2): ephemeral, so unlogged;
-- shared, because the reader may be at another replica.
CREATE UNLOGGED TABLE presence (
    agent_id      text COLLATE "C" PRIMARY KEY,
    session_epoch bigint NOT NULL,
    connection    text COLLATE "C" NOT NULL,
    expires_at    timestamptz NOT NULL,
    document      bytea NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX presence_expiry ON presence (expires_at);

-- Used up accounts are few, and each read of a Group asks for them.
CREATE INDEX budget_accounts_exhausted ON budget_accounts (tree_id, group_id) WHERE exhausted;
CREATE INDEX missions_awaiting ON missions (owner_id, mission_id) WHERE state = 'awaiting_approval';
-- A root MissionOwner finds the Groups below its Missions by their root.
CREATE INDEX groups_root ON groups (root_mission_id);

-- +goose Down
DROP INDEX groups_root, missions_awaiting, budget_accounts_exhausted;
DROP TABLE presence;
DROP TRIGGER missions_archived ON missions;
DROP FUNCTION mw_group_archived();
DROP TABLE trim_queue;
DROP VIEW event_log;
INSERT INTO events SELECT * FROM archived_events;
DROP TABLE archived_events;
