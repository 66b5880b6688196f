-- +goose Up

-- Agent Registry: the Organization's signing keys, Agent Cards, services and
-- Extension Profiles. Whatever the verification of an old document may depend
-- on is append-only; a trigger says so even to a program that forgets it.
--
-- Conventions
--   A database belongs to one Organization. Ids compare as bytes (COLLATE "C").
--   Times that belong to a registered or signed document are text: the spelling
--   is what was agreed, and it may have more digits than timestamptz holds.
--   revision is the registry revision that brought a row; together the rows of
--   revisions 1..n are the registry at revision n.

-- +goose StatementBegin
CREATE FUNCTION mw_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'table % is append-only: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END
$$;
-- +goose StatementEnd

CREATE TABLE organizations (
    organization_id text COLLATE "C" PRIMARY KEY,
    created_at      timestamptz NOT NULL
);
CREATE UNIQUE INDEX organizations_only_one ON organizations ((true));
CREATE TRIGGER organizations_kept BEFORE UPDATE OR DELETE ON organizations
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- One row. A writer raises the revision first and so holds the row until it
-- commits: registry transactions are serial, and a reader who sees revision n
-- sees all of n.
CREATE TABLE registry_head (
    organization_id text COLLATE "C" PRIMARY KEY REFERENCES organizations,
    revision        bigint NOT NULL CHECK (revision >= 0)
) WITH (fillfactor = 50);

-- +goose StatementBegin
CREATE FUNCTION mw_registry_head_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.organization_id <> OLD.organization_id OR NEW.revision <> OLD.revision + 1 THEN
        RAISE EXCEPTION 'registry revision % does not follow %', NEW.revision, OLD.revision
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER registry_head_step BEFORE UPDATE ON registry_head
    FOR EACH ROW EXECUTE FUNCTION mw_registry_head_step();
CREATE TRIGGER registry_head_kept BEFORE DELETE ON registry_head
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- One key id, one Principal, one public key, for ever (PROTOCOL.md 6.4).
CREATE TABLE key_bindings (
    key_id             text COLLATE "C" PRIMARY KEY,
    principal_type     text COLLATE "C" NOT NULL CHECK (principal_type IN ('agent', 'human', 'service')),
    principal_id       text COLLATE "C" NOT NULL,
    algorithm          text COLLATE "C" NOT NULL CHECK (algorithm = 'Ed25519'),
    public_key         bytea NOT NULL CHECK (octet_length(public_key) = 32),
    valid_from         text COLLATE "C" NOT NULL,
    revision           bigint NOT NULL CHECK (revision > 0),
    registered_at      timestamptz NOT NULL,
    registered_by_type text COLLATE "C" NOT NULL,
    registered_by_id   text COLLATE "C" NOT NULL,
    CONSTRAINT key_bindings_public_key_once UNIQUE (public_key)
);
CREATE INDEX key_bindings_principal ON key_bindings (principal_type, principal_id);
CREATE INDEX key_bindings_revision ON key_bindings (revision);
CREATE TRIGGER key_bindings_kept BEFORE UPDATE OR DELETE ON key_bindings
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER key_bindings_not_emptied BEFORE TRUNCATE ON key_bindings
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Status records of a key, numbered from 1. A boundary that is not named stays.
CREATE TABLE key_validity (
    key_id          text COLLATE "C" NOT NULL REFERENCES key_bindings,
    sequence        bigint NOT NULL CHECK (sequence >= 1),
    valid_until     text COLLATE "C",
    revoked_at      text COLLATE "C",
    recorded_at     text COLLATE "C" NOT NULL,
    changed_by_type text COLLATE "C" NOT NULL,
    changed_by_id   text COLLATE "C" NOT NULL,
    revision        bigint NOT NULL CHECK (revision > 0),
    PRIMARY KEY (key_id, sequence),
    CHECK (valid_until IS NOT NULL OR revoked_at IS NOT NULL)
);
CREATE INDEX key_validity_revision ON key_validity (revision);

-- +goose StatementBegin
CREATE FUNCTION mw_key_validity_gapless() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.sequence <> 1 + (SELECT count(*) FROM key_validity WHERE key_id = NEW.key_id) THEN
        RAISE EXCEPTION 'validity record % of key % does not follow the last one', NEW.sequence, NEW.key_id
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER key_validity_gapless BEFORE INSERT ON key_validity
    FOR EACH ROW EXECUTE FUNCTION mw_key_validity_gapless();
CREATE TRIGGER key_validity_kept BEFORE UPDATE OR DELETE ON key_validity
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER key_validity_not_emptied BEFORE TRUNCATE ON key_validity
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- Every version of every Agent Card, as signed.
CREATE TABLE agent_cards (
    agent_id      text COLLATE "C" NOT NULL,
    card_version  bigint NOT NULL CHECK (card_version >= 1),
    status        text COLLATE "C" NOT NULL CHECK (status IN ('active', 'deprecated', 'revoked')),
    document      bytea NOT NULL,
    signing_hash  text COLLATE "C" NOT NULL UNIQUE,
    revision      bigint NOT NULL CHECK (revision > 0),
    registered_at timestamptz NOT NULL,
    PRIMARY KEY (agent_id, card_version)
);
CREATE TRIGGER agent_cards_kept BEFORE UPDATE OR DELETE ON agent_cards
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
CREATE TRIGGER agent_cards_not_emptied BEFORE TRUNCATE ON agent_cards
    FOR EACH STATEMENT EXECUTE FUNCTION mw_append_only();

-- The present card of each Agent, for lists and for the version check; it can be
-- rebuilt from agent_cards.
CREATE TABLE agents (
    agent_id     text COLLATE "C" PRIMARY KEY,
    card_version bigint NOT NULL,
    status       text COLLATE "C" NOT NULL,
    capabilities text[] COLLATE "C" NOT NULL,
    revision     bigint NOT NULL,
    FOREIGN KEY (agent_id, card_version) REFERENCES agent_cards
);
CREATE INDEX agents_capability ON agents USING gin (capabilities);
CREATE INDEX agents_revision ON agents (revision);

-- What Organization policy makes of a Principal: which service has which duty,
-- and which Agent is the context generator (COMMANDS.md 3.4.1). Rows are added
-- and never taken back, so that what was once accepted stays explicable.
CREATE TABLE org_services (
    role           text COLLATE "C" NOT NULL CHECK (role IN ('registry', 'identity', 'group-authority',
                       'authorization', 'archival', 'policy', 'metering', 'evidence', 'context-generator')),
    principal_type text COLLATE "C" NOT NULL,
    principal_id   text COLLATE "C" NOT NULL,
    revision       bigint NOT NULL CHECK (revision > 0),
    PRIMARY KEY (role, principal_type, principal_id),
    CHECK (principal_type = CASE role WHEN 'context-generator' THEN 'agent' ELSE 'service' END)
);
CREATE TRIGGER org_services_kept BEFORE UPDATE OR DELETE ON org_services
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

CREATE TABLE extension_profiles (
    profile_uri   text COLLATE "C" NOT NULL,
    version       text COLLATE "C" NOT NULL,
    critical      boolean NOT NULL,
    document      bytea NOT NULL,
    signing_hash  text COLLATE "C" NOT NULL UNIQUE,
    revision      bigint NOT NULL CHECK (revision > 0),
    registered_at timestamptz NOT NULL,
    PRIMARY KEY (profile_uri, version)
);
CREATE INDEX extension_profiles_revision ON extension_profiles (revision);
CREATE TRIGGER extension_profiles_kept BEFORE UPDATE OR DELETE ON extension_profiles
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- Signed bodies of writes that are not Commands: each is taken once, and kept,
-- because it is the only proof of who asked for the change.
CREATE TABLE signed_writes (
    signing_hash   text COLLATE "C" PRIMARY KEY,
    route          text COLLATE "C" NOT NULL,
    principal_type text COLLATE "C" NOT NULL,
    principal_id   text COLLATE "C" NOT NULL,
    key_id         text COLLATE "C" NOT NULL,
    requested_at   text COLLATE "C" NOT NULL,
    received_at    timestamptz NOT NULL,
    body           bytea NOT NULL
);
CREATE TRIGGER signed_writes_kept BEFORE UPDATE OR DELETE ON signed_writes
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- Protected audit of callers that were refused outside the Command pipeline,
-- aggregated: one row per peer, reason and hour, however often it happens.
CREATE TABLE access_denials (
    hour        timestamptz NOT NULL,
    peer        text COLLATE "C" NOT NULL,
    code        text COLLATE "C" NOT NULL,
    stage       text COLLATE "C" NOT NULL,
    reason      text COLLATE "C" NOT NULL,
    occurrences bigint NOT NULL CHECK (occurrences > 0),
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    PRIMARY KEY (hour, peer, code, stage, reason)
);

-- +goose Down
DROP TABLE access_denials, signed_writes, extension_profiles, org_services, agents, agent_cards,
    key_validity, key_bindings, registry_head, organizations;
DROP FUNCTION mw_key_validity_gapless();
DROP FUNCTION mw_registry_head_step();
DROP FUNCTION mw_append_only();
