-- +goose Up

-- The Group log, its receipts, admissions, audit, and the projections that are
-- rebuilt from it.
--
-- Conventions
--   tree_id leads every Group-scoped primary key: it is the placement key of a
--   Mission tree (first eight bytes of SHA-256 over the root Mission's id). Two
--   trees may share one without harm, because group_id follows it in each key.
--   Ids compare as bytes (COLLATE "C"). Hashes are raw bytes. Signed bytes are
--   EXTERNAL: compressing them would cost more processor time than they save.
--   Times minted here have microseconds, so timestamptz keeps their one
--   spelling (UTC, Z, six digits).

-- mw_conflict ends a commit pipeline on the server as soon as a condition the
-- batch was decided under has moved, so that one round trip decides and
-- commits. SQLSTATE class MW is read by internal/events.
-- +goose StatementBegin
CREATE FUNCTION mw_conflict(state text, detail text) RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    RAISE EXCEPTION 'commit condition moved' USING ERRCODE = state, DETAIL = detail;
END
$$;
-- +goose StatementEnd

CREATE TABLE groups (
    tree_id            bigint NOT NULL,
    group_id           text COLLATE "C" NOT NULL,
    mission_id         text COLLATE "C" NOT NULL,
    root_mission_id    text COLLATE "C" NOT NULL,
    head_sequence      bigint NOT NULL CHECK (head_sequence >= 0),
    published_sequence bigint NOT NULL DEFAULT 0 CHECK (published_sequence >= 0),
    trimmed_sequence   bigint NOT NULL DEFAULT 0,
    created_at         timestamptz NOT NULL,
    PRIMARY KEY (tree_id, group_id)
) WITH (fillfactor = 50);
-- head_sequence and published_sequence are in no index: their updates stay HOT.
CREATE UNIQUE INDEX groups_group_id ON groups (group_id) INCLUDE (tree_id);
CREATE UNIQUE INDEX groups_mission_id ON groups (mission_id);

CREATE TABLE events (
    tree_id             bigint NOT NULL,
    group_id            text COLLATE "C" NOT NULL,
    sequence            bigint NOT NULL CHECK (sequence > 0),
    event_id            uuid NOT NULL,
    kind                text COLLATE "C" NOT NULL,
    occurred_at         timestamptz NOT NULL,
    command_hash        bytea,
    signing_hash        bytea NOT NULL,
    -- First-Admission Record of the Event (document kind event). Its Principal
    -- is the accepting Authority, so admission_by names both.
    admission_id        uuid NOT NULL,
    admission_key_id    text COLLATE "C" NOT NULL,
    admission_at        timestamptz NOT NULL,
    admission_by        text COLLATE "C" NOT NULL,
    document            bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, sequence)
);
ALTER TABLE events ALTER COLUMN document SET STORAGE EXTERNAL;
ALTER TABLE events SET (toast_tuple_target = 8160);
-- No index on event_id: the signed bytes contain groupId and sequence, so the
-- primary key keeps Events, signing hashes and their records unique, and the
-- fold refuses an id that its Group has used.

-- Facts of the Organization that belong to no Group.
CREATE TABLE org_events (
    ordinal             bigint GENERATED ALWAYS AS IDENTITY,
    event_id            uuid PRIMARY KEY,
    kind                text COLLATE "C" NOT NULL,
    subject_id          text COLLATE "C" NOT NULL,
    occurred_at         timestamptz NOT NULL,
    command_hash        bytea,
    signing_hash        bytea NOT NULL UNIQUE,
    admission_id        uuid NOT NULL,
    admission_key_id    text COLLATE "C" NOT NULL,
    admission_at        timestamptz NOT NULL,
    admission_by        text COLLATE "C" NOT NULL,
    document            bytea NOT NULL
);
ALTER TABLE org_events ALTER COLUMN document SET STORAGE EXTERNAL;
CREATE INDEX org_events_subject ON org_events (subject_id, ordinal);

-- Accepted Commands. The primary key is the idempotency key over all Groups;
-- it is also the arbiter between an acceptance and a refusal of the same bytes
-- (see admissions): both insert it, a refusal takes it out again.
CREATE TABLE receipts (
    actor_type          text COLLATE "C" NOT NULL,
    actor_id            text COLLATE "C" NOT NULL,
    action_id           text COLLATE "C" NOT NULL,
    signing_hash        bytea NOT NULL,
    tree_id             bigint,
    group_id            text COLLATE "C",
    kind                text COLLATE "C" NOT NULL,
    accepted_at         timestamptz NOT NULL,
    -- First-Admission Record of the Command; the Principal is the actor.
    admission_id        uuid NOT NULL,
    admission_key_id    text COLLATE "C" NOT NULL,
    admission_at        timestamptz NOT NULL,
    admission_by        text COLLATE "C" NOT NULL,
    -- response is the receipt as sent. hidden lists positions in its events
    -- that the actor could not see; readers of a replay leave them out.
    response            bytea NOT NULL,
    hidden              integer[],
    command             bytea NOT NULL,
    PRIMARY KEY (actor_type, actor_id, action_id)
);
ALTER TABLE receipts ALTER COLUMN command SET STORAGE EXTERNAL;
ALTER TABLE receipts ALTER COLUMN response SET STORAGE EXTERNAL;
ALTER TABLE receipts SET (toast_tuple_target = 8160);

-- First-Admission Records of documents that arrive embedded or alone, and of
-- Commands that were refused after admission. Together with the columns above
-- this is one log per Organization, unique on the signing hash:
--   * a signing hash belongs to one document kind (no two kinds share a
--     structure), so places of different kinds cannot collide;
--   * Events are unique by Group and sequence, Commands by the receipt key;
--   * a Command is either here or in receipts under another id never: whoever
--     writes one holds the receipt key and looks at the other place.
CREATE TABLE admissions (
    organization_id     text COLLATE "C" NOT NULL,
    signing_hash        bytea NOT NULL,
    record_id           uuid NOT NULL UNIQUE,
    document_kind       text COLLATE "C" NOT NULL,
    key_id              text COLLATE "C" NOT NULL,
    principal_type      text COLLATE "C" NOT NULL,
    principal_id        text COLLATE "C" NOT NULL,
    trusted_accepted_at timestamptz NOT NULL,
    accepted_by         text COLLATE "C" NOT NULL,
    PRIMARY KEY (signing_hash, organization_id)
);

-- Protected: read by auditors only. repeats counts further refusals that a
-- flood from one peer folded into this record.
CREATE TABLE audit_records (
    audit_id            uuid PRIMARY KEY,
    recorded_at         timestamptz NOT NULL,
    step                text COLLATE "C" NOT NULL,
    stage               text COLLATE "C",
    code                text COLLATE "C" NOT NULL,
    reason              text COLLATE "C" NOT NULL,
    cause               text,
    signing_hash        bytea,
    body_hash           bytea NOT NULL,
    peer                text NOT NULL,
    actor_type          text COLLATE "C",
    actor_id            text COLLATE "C",
    action_id           text COLLATE "C",
    kind                text COLLATE "C",
    group_id            text COLLATE "C",
    repeats             bigint NOT NULL DEFAULT 0
);
CREATE INDEX audit_records_group ON audit_records (group_id, recorded_at) WHERE group_id IS NOT NULL;
CREATE INDEX audit_records_hash ON audit_records (signing_hash) WHERE signing_hash IS NOT NULL;
CREATE INDEX audit_records_body ON audit_records (body_hash);
CREATE INDEX audit_records_time ON audit_records (recorded_at);

CREATE TABLE policy_log (
    tree_id     bigint NOT NULL,
    group_id    text COLLATE "C" NOT NULL,
    sequence    bigint NOT NULL,
    entry_id    text COLLATE "C" NOT NULL,
    decision    text COLLATE "C" NOT NULL,
    actor_type  text COLLATE "C" NOT NULL,
    actor_id    text COLLATE "C" NOT NULL,
    occurred_at timestamptz NOT NULL,
    document    bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, sequence)
);

-- Durable Cursors: monotonic, never past the head.
CREATE TABLE cursors (
    tree_id    bigint NOT NULL,
    group_id   text COLLATE "C" NOT NULL,
    actor_type text COLLATE "C" NOT NULL,
    actor_id   text COLLATE "C" NOT NULL,
    sequence   bigint NOT NULL CHECK (sequence >= 0),
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tree_id, group_id, actor_type, actor_id)
) WITH (fillfactor = 70);

-- Folded states for fast loading; a cache, never evidence.
CREATE TABLE snapshots (
    tree_id    bigint NOT NULL,
    group_id   text COLLATE "C" NOT NULL,
    sequence   bigint NOT NULL,
    format     integer NOT NULL,
    state      bytea NOT NULL,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tree_id, group_id)
);

-- When the sweeper has to look at a Group next; no row means never.
CREATE TABLE group_timers (
    tree_id  bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    due_at   timestamptz NOT NULL,
    PRIMARY KEY (tree_id, group_id)
);
CREATE INDEX group_timers_due ON group_timers (due_at, tree_id, group_id);

-- Projections. Each row is the fold's present document and the columns that
-- queries need; mw rebuild makes them from the log, mw verify compares.

CREATE TABLE missions (
    tree_id              bigint NOT NULL,
    group_id             text COLLATE "C" NOT NULL,
    mission_id           text COLLATE "C" NOT NULL,
    revision             bigint NOT NULL,
    state                text COLLATE "C" NOT NULL,
    group_state          text COLLATE "C" NOT NULL,
    owner_type           text COLLATE "C" NOT NULL,
    owner_id             text COLLATE "C" NOT NULL,
    coordinator_id       text COLLATE "C" NOT NULL,
    coordinator_epoch    bigint NOT NULL,
    coordinator_expires  timestamptz NOT NULL,
    deadline             timestamptz NOT NULL,
    parent_mission_id    text COLLATE "C",
    parent_work_item_id  text COLLATE "C",
    follow_up_to         text COLLATE "C",
    created_at           timestamptz NOT NULL,
    document             bytea NOT NULL,
    group_document       bytea NOT NULL,
    coordinator_lease    bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id)
);
CREATE UNIQUE INDEX missions_mission ON missions (mission_id);
CREATE INDEX missions_owner ON missions (owner_type, owner_id, mission_id);
CREATE INDEX missions_coordinator ON missions (coordinator_id, mission_id);
CREATE INDEX missions_parent ON missions (parent_mission_id) WHERE parent_mission_id IS NOT NULL;

CREATE TABLE memberships (
    tree_id             bigint NOT NULL,
    group_id            text COLLATE "C" NOT NULL,
    member_type         text COLLATE "C" NOT NULL,
    member_id           text COLLATE "C" NOT NULL,
    membership_id       text COLLATE "C" NOT NULL,
    role                text COLLATE "C" NOT NULL,
    state               text COLLATE "C" NOT NULL,
    epoch               bigint NOT NULL,
    visibility_start    bigint NOT NULL,
    provisional_expires timestamptz,
    document            bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, member_type, member_id)
);
CREATE INDEX memberships_member ON memberships (member_type, member_id, group_id) INCLUDE (state);

CREATE TABLE conversations (
    tree_id         bigint NOT NULL,
    group_id        text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    type            text COLLATE "C" NOT NULL,
    work_item_id    text COLLATE "C",
    revision        bigint NOT NULL,
    document        bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, conversation_id)
) WITH (fillfactor = 60);

-- A Message document never changes and stands in its Event already: the row
-- points there instead of storing it twice.
CREATE TABLE messages (
    tree_id         bigint NOT NULL,
    group_id        text COLLATE "C" NOT NULL,
    message_id      text COLLATE "C" NOT NULL,
    conversation_id text COLLATE "C" NOT NULL,
    sequence        bigint NOT NULL,
    kind            text COLLATE "C" NOT NULL,
    target_id       text COLLATE "C",
    retracted       boolean NOT NULL,
    redacted        boolean NOT NULL,
    PRIMARY KEY (tree_id, group_id, message_id)
);
CREATE INDEX messages_conversation ON messages (tree_id, group_id, conversation_id, sequence);

CREATE TABLE work_items (
    tree_id            bigint NOT NULL,
    group_id           text COLLATE "C" NOT NULL,
    work_item_id       text COLLATE "C" NOT NULL,
    conversation_id    text COLLATE "C" NOT NULL,
    revision           bigint NOT NULL,
    state              text COLLATE "C" NOT NULL,
    owner_id           text COLLATE "C",
    ownership_epoch    bigint NOT NULL,
    -- owner_live is false once the record no longer stands for a live owner.
    owner_live         boolean NOT NULL,
    custody            boolean NOT NULL,
    execution_expires  timestamptz,
    ownership_expires  timestamptz,
    parent_work_item_id text COLLATE "C",
    deadline           timestamptz NOT NULL,
    updated_at         timestamptz NOT NULL,
    document           bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, work_item_id)
) WITH (fillfactor = 70);
ALTER TABLE work_items ALTER COLUMN document SET STORAGE EXTERNAL;
CREATE INDEX work_items_owner ON work_items (owner_id, state) WHERE owner_id IS NOT NULL;

CREATE TABLE offers (
    tree_id      bigint NOT NULL,
    group_id     text COLLATE "C" NOT NULL,
    offer_id     text COLLATE "C" NOT NULL,
    work_item_id text COLLATE "C" NOT NULL,
    agent_id     text COLLATE "C" NOT NULL,
    status       text COLLATE "C" NOT NULL,
    expires_at   timestamptz NOT NULL,
    document     bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, offer_id)
);
CREATE INDEX offers_agent ON offers (agent_id, status, offer_id);
CREATE INDEX offers_work_item ON offers (tree_id, group_id, work_item_id);

CREATE TABLE leases (
    tree_id      bigint NOT NULL,
    group_id     text COLLATE "C" NOT NULL,
    lease_id     text COLLATE "C" NOT NULL,
    type         text COLLATE "C" NOT NULL,
    work_item_id text COLLATE "C" NOT NULL,
    holder_id    text COLLATE "C" NOT NULL,
    state        text COLLATE "C" NOT NULL,
    expires_at   timestamptz NOT NULL,
    document     bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, lease_id)
) WITH (fillfactor = 70);
CREATE INDEX leases_work_item ON leases (tree_id, group_id, work_item_id);
CREATE INDEX leases_holder ON leases (holder_id, expires_at) WHERE state = 'active';

CREATE TABLE artifacts (
    tree_id         bigint NOT NULL,
    group_id        text COLLATE "C" NOT NULL,
    artifact_id     text COLLATE "C" NOT NULL,
    content_hash    text COLLATE "C" NOT NULL,
    work_item_id    text COLLATE "C" NOT NULL,
    ownership_epoch bigint NOT NULL,
    document        bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, artifact_id)
);
CREATE INDEX artifacts_hash ON artifacts (content_hash, tree_id);

CREATE TABLE approvals (
    tree_id     bigint NOT NULL,
    group_id    text COLLATE "C" NOT NULL,
    approval_id text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL,
    decision    text COLLATE "C" NOT NULL,
    work_item_id text COLLATE "C",
    revoked_by  text COLLATE "C",
    document    bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, approval_id)
);

CREATE TABLE budget_accounts (
    tree_id      bigint NOT NULL,
    group_id     text COLLATE "C" NOT NULL,
    account_type text COLLATE "C" NOT NULL,
    account_id   text COLLATE "C" NOT NULL,
    -- exhausted: a limit above zero is used up in some dimension.
    exhausted    boolean NOT NULL,
    document     bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, account_type, account_id)
) WITH (fillfactor = 70);

-- The remaining documents of a Group, which are read whole: proposal,
-- evidence, context_package, delegation_grant, override_grant,
-- execution_approval, approval_request, action_approval, group_snapshot.
CREATE TABLE group_documents (
    tree_id      bigint NOT NULL,
    group_id     text COLLATE "C" NOT NULL,
    type         text COLLATE "C" NOT NULL,
    id           text COLLATE "C" NOT NULL,
    work_item_id text COLLATE "C",
    status       text COLLATE "C" NOT NULL,
    expires_at   timestamptz,
    document     bytea NOT NULL,
    PRIMARY KEY (tree_id, group_id, type, id)
) WITH (fillfactor = 80);
CREATE INDEX group_documents_status ON group_documents (type, status, expires_at)
    WHERE type IN ('approval_request', 'action_approval');

-- +goose Down
DROP TABLE group_documents, budget_accounts, approvals, artifacts, leases, offers, work_items,
    messages, conversations, memberships, missions, group_timers, snapshots, cursors, policy_log,
    audit_records, admissions, receipts, org_events, events, groups;
DROP FUNCTION mw_conflict(text, text);
