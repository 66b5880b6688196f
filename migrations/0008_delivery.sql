-- +goose Up

-- Direct subscriptions of Workers at NATS. Both tables say what a Worker was
-- given, never what it may have: that is judged by memberships and sessions each
-- time it is used, and again when those change.

-- Credentials that a Worker presents to NATS, by hash: who reads the database
-- cannot connect with them. Unlogged, because one that a crash forgets is only
-- asked for again.
CREATE UNLOGGED TABLE nats_credentials (
    token_hash    bytea PRIMARY KEY,
    agent_id      text COLLATE "C" NOT NULL,
    key_id        text COLLATE "C" NOT NULL,
    session_epoch bigint NOT NULL,
    group_ids     text[] COLLATE "C" NOT NULL,
    expires_at    timestamptz NOT NULL
);
CREATE INDEX nats_credentials_expiry ON nats_credentials (expires_at);

-- Connections that NATS was told to let in, so that any replica can have them
-- cut. Logged: a crash must not make a connection unknown while it lasts.
CREATE TABLE nats_connections (
    server_id         text COLLATE "C" NOT NULL,
    client_id         bigint NOT NULL,
    agent_id          text COLLATE "C" NOT NULL,
    key_id            text COLLATE "C" NOT NULL,
    session_epoch     bigint NOT NULL,
    group_ids         text[] COLLATE "C" NOT NULL,
    membership_epochs bigint[] NOT NULL,
    expires_at        timestamptz NOT NULL,
    PRIMARY KEY (server_id, client_id)
);
CREATE INDEX nats_connections_agent ON nats_connections (agent_id);

-- +goose Down
DROP TABLE nats_connections, nats_credentials;
