-- +goose Up

-- Tokens of the Authorization Service, what became of them, the keys that sign
-- them, and the log of every decision that policy takes outside of a Group's own
-- log (PROTOCOL.md 12).

-- One row per token that was given out; the token itself is never stored. Rows
-- stay: they are what makes an approval for one use an approval for one token.
CREATE TABLE issued_tokens (
    token_id           text COLLATE "C" PRIMARY KEY,
    kind               text COLLATE "C" NOT NULL CHECK (kind IN ('capability', 'membership')),
    group_id           text COLLATE "C" NOT NULL,
    agent_id           text COLLATE "C" NOT NULL,
    key_id             text COLLATE "C" NOT NULL,
    session_epoch      bigint NOT NULL CHECK (session_epoch > 0),
    membership_epoch   bigint NOT NULL CHECK (membership_epoch > 0),
    work_item_id       text COLLATE "C",
    ownership_epoch    bigint,
    execution_lease_id text COLLATE "C",
    approval_id        text COLLATE "C",
    -- one_shot: the approval covers exactly one action, hence one token.
    one_shot           boolean NOT NULL DEFAULT false,
    manifest_version   text COLLATE "C",
    signing_key_id     text COLLATE "C" NOT NULL,
    issued_at          timestamptz NOT NULL,
    expires_at         timestamptz NOT NULL,
    CHECK (kind = 'membership' OR (work_item_id IS NOT NULL AND ownership_epoch IS NOT NULL AND execution_lease_id IS NOT NULL)),
    CHECK (NOT one_shot OR approval_id IS NOT NULL)
);
CREATE UNIQUE INDEX issued_tokens_one_shot ON issued_tokens (group_id, approval_id) WHERE one_shot;
CREATE INDEX issued_tokens_group ON issued_tokens (group_id, expires_at);
CREATE INDEX issued_tokens_expiry ON issued_tokens (expires_at);
CREATE TRIGGER issued_tokens_kept BEFORE UPDATE OR DELETE ON issued_tokens
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER issued_tokens_not_emptied BEFORE TRUNCATE ON issued_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Tokens that ended before their expiry. A row is made once and never undone; a
-- token whose row is missing may still be dead, because whoever checks online
-- asks the state of the Group as well.
CREATE TABLE token_revocations (
    token_id   text COLLATE "C" PRIMARY KEY REFERENCES issued_tokens,
    reason     text COLLATE "C" NOT NULL,
    revoked_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX token_revocations_expiry ON token_revocations (expires_at);
CREATE TRIGGER token_revocations_kept BEFORE UPDATE OR DELETE ON token_revocations
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER token_revocations_not_emptied BEFORE TRUNCATE ON token_revocations
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Which key signs for a role from when on. The present one is the last that has
-- begun; one that has not begun is passive, one that was followed is retired.
-- Whether a key is good at all is the Registry's word alone (key_validity).
CREATE TABLE signing_keys (
    key_id      text COLLATE "C" PRIMARY KEY REFERENCES key_bindings,
    role        text COLLATE "C" NOT NULL,
    signs_from  timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (role, signs_from)
);
CREATE TRIGGER signing_keys_kept BEFORE UPDATE OR DELETE ON signing_keys
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- The Policy Log of the service: every decision with the rules and the manifest
-- version it came from. input is the JSON that was decided on, complete enough
-- to decide again; result is what was answered, without secrets.
CREATE TABLE policy_decisions (
    entry            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    decision_id      text COLLATE "C" NOT NULL UNIQUE,
    decided_at       timestamptz NOT NULL,
    category         text COLLATE "C" NOT NULL
        CHECK (category IN ('token', 'gate', 'action', 'manifest', 'budget', 'escalation', 'input', 'memory', 'key')),
    outcome          text COLLATE "C" NOT NULL,
    code             text COLLATE "C",
    reason           text COLLATE "C",
    rule_ids         text[] COLLATE "C" NOT NULL,
    manifest_version text COLLATE "C",
    principal_type   text COLLATE "C" NOT NULL,
    principal_id     text COLLATE "C" NOT NULL,
    group_id         text COLLATE "C",
    work_item_id     text COLLATE "C",
    subject_id       text COLLATE "C",
    input            bytea NOT NULL,
    result           bytea
);
CREATE INDEX policy_decisions_group ON policy_decisions (group_id, entry) WHERE group_id IS NOT NULL;
CREATE INDEX policy_decisions_subject ON policy_decisions (subject_id) WHERE subject_id IS NOT NULL;
CREATE INDEX policy_decisions_category ON policy_decisions (category, entry);
CREATE TRIGGER policy_decisions_kept BEFORE UPDATE OR DELETE ON policy_decisions
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER policy_decisions_not_emptied BEFORE TRUNCATE ON policy_decisions
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- +goose Down
DROP TABLE policy_decisions, signing_keys, token_revocations, issued_tokens;
