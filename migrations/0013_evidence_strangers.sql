-- +goose Up

-- An action may be refused about a WorkItem that nobody has owned yet, or that there
-- is not: it is evidence all the same. Epoch 0 is the run of what nobody owned; the
-- actions about no WorkItem of a Group are in the run of the Group's own id.
ALTER TABLE evidence_runs DROP CONSTRAINT evidence_runs_ownership_epoch_check;
ALTER TABLE evidence_runs ADD CONSTRAINT evidence_runs_ownership_epoch_check CHECK (ownership_epoch >= 0);

-- What a memory write did is found by its action.
CREATE INDEX memory_values_action ON memory_values (group_id, action_id);

-- +goose Down
DROP INDEX memory_values_action;
ALTER TABLE evidence_runs DROP CONSTRAINT evidence_runs_ownership_epoch_check;
ALTER TABLE evidence_runs ADD CONSTRAINT evidence_runs_ownership_epoch_check CHECK (ownership_epoch > 0) NOT VALID;
