-- +goose Up

-- The rows of messages are found by sequence: the two queries that look for
-- redactions ask by it, and a scan of all Messages of a Group for each page made
-- a large Group slow to read. It is also the shorter key. The target of an
-- amendment is named by its sequence for the same reason, 0 for none.
ALTER TABLE messages ADD COLUMN target_sequence bigint NOT NULL DEFAULT 0;
UPDATE messages m SET target_sequence = t.sequence FROM messages t
WHERE t.tree_id = m.tree_id AND t.group_id = m.group_id AND t.message_id = m.target_id;
ALTER TABLE messages ALTER COLUMN target_sequence DROP DEFAULT;
ALTER TABLE messages DROP COLUMN target_id;
ALTER TABLE messages DROP CONSTRAINT messages_pkey;
ALTER TABLE messages ADD PRIMARY KEY (tree_id, group_id, sequence);
-- A Conversation's id is unique by itself.
DROP INDEX messages_conversation;
CREATE INDEX messages_conversation ON messages (conversation_id, sequence);

-- +goose Down
ALTER TABLE messages ADD COLUMN target_id text COLLATE "C";
UPDATE messages m SET target_id = t.message_id FROM messages t
WHERE t.tree_id = m.tree_id AND t.group_id = m.group_id AND t.sequence = m.target_sequence;
ALTER TABLE messages DROP COLUMN target_sequence;
ALTER TABLE messages DROP CONSTRAINT messages_pkey;
ALTER TABLE messages ADD PRIMARY KEY (tree_id, group_id, message_id);
DROP INDEX messages_conversation;
CREATE INDEX messages_conversation ON messages (tree_id, group_id, conversation_id, sequence);
