-- Statements that differ from those of SQLite. statements.sql has the others.

-- name: events_vm
AND EXISTS (SELECT 1 FROM json_array_elements_text(CAST(resources AS json)) AS vm WHERE vm ~ :vm)

-- name: events_host
AND operation IN (SELECT id FROM operation WHERE CAST(request AS json) ->> 'host' = :host)

-- name: operations_group
AND EXISTS (
    SELECT 1 FROM event, json_array_elements_text(CAST(events AS json)) AS notice
    WHERE event.id = notice AND group_name = :group
)

-- name: operations_vm
AND EXISTS (SELECT 1 FROM json_array_elements_text(CAST(vms AS json)) AS vm WHERE vm ~ :vm)

-- name: operations_host
AND CAST(request AS json) ->> 'host' = :host

-- name: operations_type
AND CAST(request AS json) ->> 'type' = :type

-- name: history_groups
AND group_name IN (SELECT json_array_elements_text(CAST(:groups AS json)))

-- name: history_vm
-- strpos is fast and excludes most rows.
AND strpos(vms, :quoted_vm) > 0 AND EXISTS (SELECT 1 FROM json_array_elements_text(CAST(vms AS json)) AS vm WHERE vm = :vm)

-- name: history_host
AND (host = :host OR EXISTS (
    SELECT 1 FROM operation, json_array_elements(CAST(moves AS json)) AS move
    WHERE operation.id = history.operation AND moves <> '[]' AND move ->> 1 = :host
))

-- name: history_kinds
AND kind IN (SELECT json_array_elements_text(CAST(:kinds AS json)))

-- name: remove_events
-- Only with their operations: an ended event may belong to an active operation.
DELETE FROM event WHERE id IN (
    SELECT json_array_elements_text(CAST(expired.events AS json)) FROM (
        SELECT events FROM operation WHERE rowid < :operations AND ended_at < :before ORDER BY rowid LIMIT :limit
    ) AS expired
);

-- name: remove_history
DELETE FROM history WHERE sequence < least(:history, (SELECT min(sequence) FROM history) + :limit);

-- name: remove_responses
DELETE FROM kept_answer WHERE rowid < least(:responses, (SELECT min(rowid) FROM kept_answer) + :limit);

-- name: texts_after
-- The next texts, and whether a VM has them. The conditions that look redundant are those of the indexes.
SELECT key, EXISTS (SELECT 1 FROM vm WHERE user_data = key AND user_data <> '')
    OR EXISTS (SELECT 1 FROM vm WHERE custom_data = key AND custom_data <> '')
    OR EXISTS (SELECT 1 FROM vm WHERE public_keys = key AND public_keys <> '')
FROM (SELECT key FROM shared_text WHERE key > :after ORDER BY key LIMIT :limit) AS part ORDER BY key;

-- name: remove_texts
DELETE FROM shared_text WHERE key = ANY(:keys);

-- name: save_response
-- A replaced row gets a new rowid, so that rowids stay in the order of time.
INSERT INTO kept_answer ({kept_answer.columns}) VALUES ({kept_answer.parameters})
ON CONFLICT (key) DO UPDATE SET {kept_answer.changes}, rowid = DEFAULT;

-- name: check_epoch
-- Fails if this node does not lead. It locks the lease until the end of the transaction, so nobody can take it before.
SELECT check_epoch(:epoch);

-- name: save_journal_part
-- Adds a row of a large commit. save_journal adds the first one.
INSERT INTO journal (number, epoch, part, data) VALUES (?, ?, ?, ?);

-- name: save_journal
-- Adds the row (number, epoch, data), notifies the other nodes on the channel, and checks the epoch as check_epoch does.
-- The last two parameters are the number and the epoch of the row that must be before it.
SELECT save_journal(?, ?, ?, ?, ?, ?);

-- name: skip_numbers_of_scopes
UPDATE delivery SET enabling = :enabling, incarnation = incarnation + :skipped;

-- name: newest_journal_position
SELECT number, epoch FROM journal ORDER BY number DESC LIMIT 1;

-- name: last_journal_row
-- Of a large commit, this is one of several rows.
SELECT number, data FROM journal ORDER BY number DESC, part DESC LIMIT 1;
