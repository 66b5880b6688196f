-- +goose Up

-- What the policy runtime looks for beside the keys that it has, and the end of
-- what is kept about tokens.

-- Proposed Actions on their way, for whoever finishes what a crash left.
CREATE INDEX proposed_actions_unsettled ON proposed_actions (decided_at, agent_id, action_id)
    WHERE state IN ('asking', 'consuming');
-- An ASK by its request, an action by its id where the Agent is not said, and the
-- allowed actions that a memory write may use.
CREATE INDEX proposed_actions_by_request ON proposed_actions (request_id, proposed_at) WHERE request_id IS NOT NULL;
CREATE INDEX proposed_actions_by_action ON proposed_actions (action_id, proposed_at);
CREATE INDEX proposed_actions_unwritten ON proposed_actions (agent_id, group_id, arguments_digest, decided_at)
    WHERE state = 'allowed' AND NOT written;

-- What one Principal was told, for that Principal, and what is about no Group. They
-- take the place of an index that no reader uses: each token writes all of them.
DROP INDEX policy_decisions_category;
CREATE INDEX policy_decisions_principal ON policy_decisions (group_id, principal_type, principal_id, entry);
CREATE INDEX policy_decisions_organization ON policy_decisions (entry) WHERE group_id IS NULL;

-- A token is nothing any more a day after its expiry: no check asks for its row, the
-- revocation list leaves it out, and the Policy Log has both its issue and its end.
-- The row of an approval for one use stays for ever: it is what keeps the approval,
-- which may outlive its token, from giving another one.
-- +goose StatementBegin
CREATE FUNCTION mw_token_kept() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND OLD.expires_at < clock_timestamp() - interval '1 day' THEN
        IF TG_TABLE_NAME <> 'issued_tokens' OR NOT (to_jsonb(OLD) -> 'one_shot')::boolean THEN
            RETURN OLD;
        END IF;
    END IF;
    RAISE EXCEPTION 'table % keeps its rows: % refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
-- +goose StatementEnd
DROP TRIGGER issued_tokens_kept ON issued_tokens;
CREATE TRIGGER issued_tokens_kept BEFORE UPDATE OR DELETE ON issued_tokens
    FOR EACH ROW EXECUTE FUNCTION mw_token_kept();
DROP TRIGGER token_revocations_kept ON token_revocations;
CREATE TRIGGER token_revocations_kept BEFORE UPDATE OR DELETE ON token_revocations
    FOR EACH ROW EXECUTE FUNCTION mw_token_kept();

-- +goose Down
DROP TRIGGER issued_tokens_kept ON issued_tokens;
CREATE TRIGGER issued_tokens_kept BEFORE UPDATE OR DELETE ON issued_tokens
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
DROP TRIGGER token_revocations_kept ON token_revocations;
CREATE TRIGGER token_revocations_kept BEFORE UPDATE OR DELETE ON token_revocations
    FOR EACH ROW EXECUTE FUNCTION mw_append_only();
DROP FUNCTION mw_token_kept;
CREATE INDEX policy_decisions_category ON policy_decisions (category, entry);
DROP INDEX policy_decisions_principal, policy_decisions_organization, proposed_actions_unsettled, proposed_actions_by_request, proposed_actions_by_action, proposed_actions_unwritten;
