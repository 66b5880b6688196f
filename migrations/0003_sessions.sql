-- +goose Up

-- Sessions of Agents and the challenges that precede every credential
-- (COMMANDS.md 8.1 to 8.4).

-- The current session of each Agent. The epoch only rises, by one, through the
-- Command session_open; the expiry follows the latest token of the epoch.
CREATE TABLE agent_sessions (
    agent_id      text COLLATE "C" PRIMARY KEY,
    session_epoch bigint NOT NULL CHECK (session_epoch >= 1),
    key_id        text COLLATE "C",
    opened_at     timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL
) WITH (fillfactor = 70);

-- +goose StatementBegin
CREATE FUNCTION mw_session_epoch_step() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.session_epoch <> 1 THEN
            RAISE EXCEPTION 'first Session Epoch of % is %', NEW.agent_id, NEW.session_epoch
                USING ERRCODE = 'integrity_constraint_violation';
        END IF;
    ELSIF NEW.session_epoch NOT IN (OLD.session_epoch, OLD.session_epoch + 1)
        OR (NEW.session_epoch = OLD.session_epoch AND NEW.expires_at < OLD.expires_at) THEN
        RAISE EXCEPTION 'Session Epoch % of % does not follow %', NEW.session_epoch, NEW.agent_id, OLD.session_epoch
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER agent_sessions_step BEFORE INSERT OR UPDATE ON agent_sessions
    FOR EACH ROW EXECUTE FUNCTION mw_session_epoch_step();
CREATE TRIGGER agent_sessions_kept BEFORE DELETE ON agent_sessions
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();

-- Challenges that wait for their signature: taken out by the first response,
-- right or wrong, and worthless after 30 s. Unlogged, because one that a crash
-- forgets is merely refused, and strangers can make us write them.
CREATE UNLOGGED TABLE challenges (
    server_nonce text COLLATE "C" PRIMARY KEY,
    purpose      text COLLATE "C" NOT NULL CHECK (purpose IN ('session', 'access')),
    transcript   bytea NOT NULL,
    expires_at   timestamptz NOT NULL
);
CREATE INDEX challenges_expiry ON challenges (expires_at);

-- Completed handshakes of the last minute, for the limit per Agent that holds
-- over all replicas (COMMANDS.md 8.12).
CREATE UNLOGGED TABLE session_handshakes (
    agent_id     text COLLATE "C" NOT NULL,
    completed_at timestamptz NOT NULL
);
CREATE INDEX session_handshakes_agent ON session_handshakes (agent_id, completed_at);

-- +goose Down
DROP TABLE session_handshakes, challenges, agent_sessions;
DROP FUNCTION mw_session_epoch_step();
