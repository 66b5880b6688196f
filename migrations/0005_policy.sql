-- +goose Up

-- World Manifests, provenance, memory, and Proposed Actions with what was decided
-- about them. Everything that a decision rests on is append-only: it has to be
-- possible to take the decision again.

-- Compiled versions. version is "sha256:" and the digest of canonical, so a row
-- proves itself; it stays resolvable for ever.
CREATE TABLE manifests (
    version        text COLLATE "C" PRIMARY KEY,
    name           text NOT NULL,
    version_name   text NOT NULL,
    layout         text COLLATE "C" NOT NULL,
    -- What was sent: a manifest, or the change of an extension.
    source         bytea NOT NULL,
    source_format  text COLLATE "C" NOT NULL CHECK (source_format IN ('yaml', 'json')),
    canonical      bytea NOT NULL,
    report         bytea NOT NULL,
    -- The version that this one extends.
    extends        text COLLATE "C" REFERENCES manifests,
    installed_by_type text COLLATE "C" NOT NULL,
    installed_by_id   text COLLATE "C" NOT NULL,
    installed_at   timestamptz NOT NULL
);
CREATE INDEX manifests_installed ON manifests (installed_at, version);
CREATE TRIGGER manifests_kept BEFORE UPDATE OR DELETE ON manifests
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER manifests_not_emptied BEFORE TRUNCATE ON manifests
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Which version is in force from when on: for one Group, or with group_id '' for
-- every Group that has none of its own. The last row counts.
CREATE TABLE manifest_bindings (
    entry      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id   text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL REFERENCES manifests,
    bound_at   timestamptz NOT NULL,
    bound_by   text COLLATE "C" NOT NULL,
    request_id text COLLATE "C"
);
CREATE INDEX manifest_bindings_group ON manifest_bindings (group_id, entry);
CREATE TRIGGER manifest_bindings_kept BEFORE UPDATE OR DELETE ON manifest_bindings
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER manifest_bindings_not_emptied BEFORE TRUNCATE ON manifest_bindings
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Versions that nobody acts under any more.
CREATE TABLE manifest_withdrawals (
    version      text COLLATE "C" PRIMARY KEY REFERENCES manifests,
    withdrawn_at timestamptz NOT NULL,
    withdrawn_by text COLLATE "C" NOT NULL,
    reason       text NOT NULL
);
CREATE TRIGGER manifest_withdrawals_kept BEFORE UPDATE OR DELETE ON manifest_withdrawals
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER manifest_withdrawals_not_emptied BEFORE TRUNCATE ON manifest_withdrawals
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Provenance of data. trust and tainted are what was true at the origin; what
-- counts is computed from the ancestry and the channel map.
CREATE TABLE provenance_records (
    record_id       text COLLATE "C" PRIMARY KEY,
    group_id        text COLLATE "C" NOT NULL,
    kind            text COLLATE "C" NOT NULL CHECK (kind IN ('input', 'memory_write', 'memory_read')),
    source          text NOT NULL,
    trust           text COLLATE "C" NOT NULL,
    tainted         boolean NOT NULL,
    transformations text[] NOT NULL,
    parents         text[] COLLATE "C" NOT NULL,
    session_id      text COLLATE "C" NOT NULL,
    made_by_type    text COLLATE "C" NOT NULL,
    made_by_id      text COLLATE "C" NOT NULL,
    created_at      timestamptz NOT NULL
);
CREATE INDEX provenance_records_group ON provenance_records (group_id, created_at);
CREATE TRIGGER provenance_records_kept BEFORE UPDATE OR DELETE ON provenance_records
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER provenance_records_not_emptied BEFORE TRUNCATE ON provenance_records
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- What Agents see of inputs. The raw bytes are not here, only their digest.
CREATE TABLE semantic_events (
    event_id          text COLLATE "C" PRIMARY KEY,
    group_id          text COLLATE "C" NOT NULL,
    work_item_id      text COLLATE "C",
    record_id         text COLLATE "C" NOT NULL UNIQUE REFERENCES provenance_records,
    media_type        text NOT NULL,
    sanitized_payload text NOT NULL,
    payload_digest    text COLLATE "C" NOT NULL,
    hidden            boolean NOT NULL,
    manifest_version  text COLLATE "C" NOT NULL REFERENCES manifests
);
CREATE INDEX semantic_events_group ON semantic_events (group_id, event_id);
CREATE TRIGGER semantic_events_kept BEFORE UPDATE OR DELETE ON semantic_events
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER semantic_events_not_emptied BEFORE TRUNCATE ON semantic_events
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Memory of Groups: every value that a key had; the last one counts.
CREATE TABLE memory_values (
    entry     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id  text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL,
    value     bytea NOT NULL,
    record_id text COLLATE "C" NOT NULL UNIQUE REFERENCES provenance_records,
    -- The Proposed Action that allowed the write.
    action_id text COLLATE "C" NOT NULL
);
CREATE INDEX memory_values_key ON memory_values (group_id, key, entry);
CREATE TRIGGER memory_values_kept BEFORE UPDATE OR DELETE ON memory_values
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER memory_values_not_emptied BEFORE TRUNCATE ON memory_values
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Proposed Actions. state moves forward only: asking (the request is on its way to
-- the Group's log), asked, consuming (an answer is being used up), and the final
-- allowed and denied. command is the signed Command of asking and consuming, so
-- that after a crash the same one is sent again and nothing happens twice.
CREATE TABLE proposed_actions (
    agent_id           text COLLATE "C" NOT NULL,
    action_id          text COLLATE "C" NOT NULL,
    group_id           text COLLATE "C" NOT NULL,
    work_item_id       text COLLATE "C" NOT NULL,
    proposal_digest    text COLLATE "C" NOT NULL,
    session_id         text COLLATE "C" NOT NULL,
    ownership_epoch    bigint NOT NULL,
    execution_lease_id text COLLATE "C" NOT NULL,
    token_id           text COLLATE "C" NOT NULL,
    state              text COLLATE "C" NOT NULL CHECK (state IN ('asking', 'asked', 'consuming', 'allowed', 'denied')),
    entry              bytea NOT NULL,
    manifest_version   text COLLATE "C" NOT NULL,
    arguments_digest   text COLLATE "C" NOT NULL,
    operation          text NOT NULL,
    resource           text NOT NULL,
    request_id         text COLLATE "C",
    request_expires_at timestamptz,
    -- The answer that is used up, and the ASK that it answers.
    approval_id        text COLLATE "C",
    approval_hash      text COLLATE "C",
    uses_request_id    text COLLATE "C",
    uses_action_id     text COLLATE "C",
    command            bytea,
    -- A background denial that a human should see.
    review             boolean NOT NULL DEFAULT false,
    -- The memory write that used this ALLOW.
    written            boolean NOT NULL DEFAULT false,
    proposed_at        timestamptz NOT NULL,
    decided_at         timestamptz NOT NULL,
    outcome_digest     text COLLATE "C",
    outcome            bytea,
    evidence_record_id text COLLATE "C",
    PRIMARY KEY (agent_id, action_id)
);
CREATE UNIQUE INDEX proposed_actions_request ON proposed_actions (group_id, request_id) WHERE request_id IS NOT NULL AND state <> 'denied';
CREATE INDEX proposed_actions_group ON proposed_actions (group_id, proposed_at, action_id);
CREATE INDEX proposed_actions_review ON proposed_actions (group_id, proposed_at) WHERE review;

-- +goose StatementBegin
CREATE FUNCTION mw_action_forward() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        RAISE EXCEPTION 'Proposed Actions are kept';
    END IF;
    IF OLD.state IN ('allowed', 'denied') AND NEW.state <> OLD.state
        OR OLD.outcome IS NOT NULL AND NEW.outcome IS DISTINCT FROM OLD.outcome
        OR (NEW.agent_id, NEW.action_id, NEW.group_id, NEW.work_item_id, NEW.proposal_digest, NEW.arguments_digest)
            IS DISTINCT FROM (OLD.agent_id, OLD.action_id, OLD.group_id, OLD.work_item_id, OLD.proposal_digest, OLD.arguments_digest) THEN
        RAISE EXCEPTION 'a decision about a Proposed Action is final';
    END IF;
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER proposed_actions_forward BEFORE UPDATE OR DELETE ON proposed_actions
    FOR EACH ROW EXECUTE FUNCTION mw_action_forward();
CREATE TRIGGER proposed_actions_not_emptied BEFORE TRUNCATE ON proposed_actions
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- How far a human is, as a human said: for a Group, or for one Agent in it.
CREATE TABLE action_modes (
    entry    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    group_id text COLLATE "C" NOT NULL,
    agent_id text COLLATE "C" NOT NULL,
    session_id text COLLATE "C" NOT NULL,
    mode     text COLLATE "C" NOT NULL CHECK (mode IN ('workflow', 'interactive', 'background')),
    set_by   text COLLATE "C" NOT NULL,
    set_at   timestamptz NOT NULL
);
CREATE INDEX action_modes_group ON action_modes (group_id, agent_id, entry);
CREATE TRIGGER action_modes_kept BEFORE UPDATE OR DELETE ON action_modes
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER action_modes_not_emptied BEFORE TRUNCATE ON action_modes
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- +goose Down
DROP TABLE action_modes, proposed_actions, memory_values, semantic_events, provenance_records,
    manifest_withdrawals, manifest_bindings, manifests;
DROP FUNCTION mw_action_forward;
