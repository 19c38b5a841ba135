-- Statements that differ from those of PostgreSQL. statements.sql has the others.

-- name: events_vm
AND EXISTS (SELECT 1 FROM json_each(resources) WHERE value GLOB :vm)

-- name: events_host
AND operation IN (SELECT id FROM operation WHERE json_extract(request, '$.host') = :host)

-- name: operations_group
AND EXISTS (SELECT 1 FROM json_each(events) AS notice, event WHERE event.id = notice.value AND group_name = :group)

-- name: operations_vm
AND EXISTS (SELECT 1 FROM json_each(vms) WHERE value GLOB :vm)

-- name: operations_host
AND json_extract(request, '$.host') = :host

-- name: operations_type
AND json_extract(request, '$.type') = :type

-- name: history_groups
AND group_name IN (SELECT value FROM json_each(:groups))

-- name: history_vm
-- instr is fast and excludes most rows.
AND instr(vms, :quoted_vm) > 0 AND EXISTS (SELECT 1 FROM json_each(vms) WHERE value = :vm)

-- name: history_host
AND (host = :host OR EXISTS (
    SELECT 1 FROM operation, json_each(moves) AS move
    WHERE operation.id = history.operation AND moves <> '[]' AND json_extract(move.value, '$[1]') = :host
))

-- name: history_kinds
AND kind IN (SELECT value FROM json_each(:kinds))

-- name: remove_events
-- Only with their operations: an ended event may belong to an active operation.
DELETE FROM event WHERE id IN (
    SELECT named.value FROM (
        SELECT events FROM operation WHERE rowid < :operations AND ended_at < :before ORDER BY rowid LIMIT :limit
    ) AS expired, json_each(expired.events) AS named
);

-- name: remove_history
DELETE FROM history WHERE sequence < min(:history, (SELECT min(sequence) FROM history) + :limit);

-- name: remove_responses
DELETE FROM kept_answer WHERE rowid < min(:responses, (SELECT min(rowid) FROM kept_answer) + :limit);

-- name: remove_unused_texts
DELETE FROM shared_text WHERE key NOT IN (
    SELECT user_data FROM vm UNION ALL SELECT custom_data FROM vm UNION ALL SELECT public_keys FROM vm
);

-- name: save_response
-- Replaced, not updated, so that rowids stay in the order of time.
INSERT OR REPLACE INTO kept_answer ({kept_answer.columns}) VALUES ({kept_answer.parameters});
