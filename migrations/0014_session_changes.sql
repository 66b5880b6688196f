-- +goose Up

-- The transaction that opened the current epoch of each session, so that a
-- process with many connections asks which sessions changed since it last looked
-- instead of reading all of them. A transaction and not a time: what commits late
-- must not fall before a look that has passed. Renewals do not count.
ALTER TABLE agent_sessions ADD COLUMN changed_in xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX agent_sessions_changed ON agent_sessions (changed_in);

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION mw_session_epoch_step() RETURNS trigger LANGUAGE plpgsql AS $$
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
    ELSIF NEW.session_epoch > OLD.session_epoch THEN
        NEW.changed_in := pg_current_xact_id();
    END IF;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION mw_session_epoch_step() RETURNS trigger LANGUAGE plpgsql AS $$
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
DROP INDEX agent_sessions_changed;
ALTER TABLE agent_sessions DROP COLUMN changed_in;
