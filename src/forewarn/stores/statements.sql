-- Statements of all stores. sqlite.sql and postgresql.sql have those that differ.
--
-- {event.columns}, {event.parameters} and {event.changes} are the columns of the table event, from rows.py.

-- name: load_facts
SELECT name, value FROM fact;

-- name: load_groups
SELECT {fleet_group.columns} FROM fleet_group ORDER BY rowid;

-- name: load_hosts
SELECT {host.columns} FROM host ORDER BY rowid;

-- name: load_vms
SELECT {vm.columns} FROM vm ORDER BY rowid;

-- name: load_texts
SELECT key, text FROM shared_text;

-- name: load_operations
SELECT {operation.columns} FROM operation WHERE ended_at IS NULL ORDER BY rowid;

-- name: load_rollouts
SELECT {rollout.columns} FROM rollout WHERE ended_at IS NULL ORDER BY rowid;

-- name: load_events
SELECT {event.columns} FROM event WHERE ended_at IS NULL ORDER BY rowid;

-- name: events_ended_since
SELECT {event.columns} FROM event WHERE ended_at > :since;

-- name: load_deliveries
SELECT {delivery.columns}, last_seen_at FROM delivery;

-- name: load_webhooks
SELECT {webhook.columns} FROM webhook ORDER BY rowid;

-- name: load_undelivered
SELECT {undelivered.columns} FROM undelivered;

-- name: highest_enabling
SELECT coalesce(max(enabling), 0) FROM (
    SELECT enabling FROM delivery
    UNION ALL SELECT CAST(value AS INTEGER) FROM fact WHERE name = 'forgotten_enabling'
) AS used;

-- name: last_sequence
SELECT coalesce(max(sequence), 0) FROM history;

-- name: load_tokens
SELECT {token.columns} FROM token ORDER BY rowid;

-- name: load_responses
SELECT {kept_answer.columns} FROM (SELECT key, fingerprint, at, status, '' AS body FROM kept_answer) AS short;

-- name: response
SELECT {kept_answer.columns} FROM kept_answer WHERE key = ?;

-- name: event
SELECT {event.columns} FROM event WHERE id = ?;

-- name: events_by_prefix
SELECT {event.columns} FROM event WHERE id >= :start AND id < :end
    AND (:group = '' OR group_name = :group AND generation >= :generation)
LIMIT 2;

-- name: events_live
SELECT {event.columns}, rowid FROM event WHERE ended_at IS NULL AND rowid > :after

-- name: events_all
SELECT {event.columns}, rowid FROM event WHERE (:after = 0 OR rowid < :after)

-- Conditions, added if the filter has the field.

-- name: events_after_id
AND rowid > coalesce((SELECT rowid FROM event WHERE id = :after_id), 0)

-- name: events_group
AND group_name = :group

-- name: events_generation
AND generation >= :generation

-- name: events_type
AND type = :type

-- name: events_cause
AND operation IN (SELECT id FROM operation WHERE cause = :cause)

-- name: events_status
AND status = :status

-- name: operation
SELECT {operation.columns} FROM operation WHERE id = ?;

-- name: operations_by_prefix
SELECT {operation.columns} FROM operation WHERE id >= :start AND id < :end LIMIT 2;

-- name: operations_live
SELECT {operation.columns}, rowid FROM operation WHERE ended_at IS NULL AND rowid > :after

-- name: operations_all
SELECT {operation.columns}, rowid FROM operation WHERE (:after = 0 OR rowid < :after)

-- name: operations_after_id
AND rowid > coalesce((SELECT rowid FROM operation WHERE id = :after_id), 0)

-- name: operations_cause
AND cause = :cause

-- name: operations_status
AND status = :status

-- name: operations_unexecuted
AND started_at IS NOT NULL AND executed_at IS NULL

-- name: rollouts_by_prefix
SELECT {rollout.columns} FROM rollout WHERE id >= :start AND id < :end LIMIT 2;

-- name: rollouts_live
SELECT {rollout.columns}, rowid FROM rollout WHERE ended_at IS NULL AND rowid > :after

-- name: rollouts_all
SELECT {rollout.columns}, rowid FROM rollout WHERE (:after = 0 OR rowid < :after)

-- name: rollouts_after_id
AND rowid > coalesce((SELECT rowid FROM rollout WHERE id = :after_id), 0)

-- name: oldest_first
ORDER BY rowid LIMIT :limit

-- name: newest_first
ORDER BY rowid DESC LIMIT :limit

-- name: history
SELECT {history.columns} FROM history WHERE sequence > :after

-- Conditions, added if the filter has the field.

-- name: history_before
AND sequence < :before

-- name: history_operation
AND operation = :operation AND operation <> ''

-- name: history_event
-- Includes the rows of its operation.
AND event IN (:event, '')

-- name: history_type
AND type = :type

-- name: history_cause
AND cause = :cause

-- name: history_by
AND by = :by

-- name: history_since
AND time >= :since

-- name: history_until
AND time < :until

-- name: history_oldest_first
ORDER BY sequence LIMIT :limit

-- name: history_newest_first
ORDER BY sequence DESC LIMIT :limit

-- name: oldest_sequence
SELECT coalesce(min(sequence), 1) FROM history;

-- Position of the first item to keep, searched from the oldest: an item that was created after a time has not ended
-- before it, so newer items need not be scanned.

-- name: expired_history
-- The newest row is always kept, because the sequence continues from it.
SELECT coalesce(
    (SELECT sequence FROM history WHERE time >= :before ORDER BY sequence LIMIT 1), (SELECT max(sequence) FROM history), 0
);

-- name: expired_operations
SELECT coalesce(
    (SELECT rowid FROM operation WHERE requested_at >= :before ORDER BY rowid LIMIT 1),
    (SELECT max(rowid) + 1 FROM operation), 0
);

-- name: expired_rollouts
SELECT coalesce(
    (SELECT rowid FROM rollout WHERE requested_at >= :before ORDER BY rowid LIMIT 1),
    (SELECT max(rowid) + 1 FROM rollout), 0
);

-- name: expired_responses
SELECT coalesce(
    (SELECT rowid FROM kept_answer WHERE at >= :before ORDER BY rowid LIMIT 1),
    (SELECT max(rowid) + 1 FROM kept_answer), 0
);

-- name: remove_operations
DELETE FROM operation WHERE rowid IN (
    SELECT rowid FROM operation WHERE rowid < :operations AND ended_at < :before ORDER BY rowid LIMIT :limit
);

-- name: remove_rollouts
DELETE FROM rollout WHERE rowid IN (
    SELECT rowid FROM rollout WHERE rowid < :rollouts AND ended_at < :before ORDER BY rowid LIMIT :limit
);

-- name: remove_undelivered
DELETE FROM undelivered WHERE sequence < (SELECT min(sequence) FROM history);

-- name: save_fact
INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: save_token
INSERT INTO token ({token.columns}) VALUES ({token.parameters})
ON CONFLICT (name) DO UPDATE SET {token.changes};

-- name: remove_token
DELETE FROM token WHERE name = ?;

-- name: save_group
INSERT INTO fleet_group ({fleet_group.columns}) VALUES ({fleet_group.parameters})
ON CONFLICT (name) DO UPDATE SET {fleet_group.changes};

-- name: remove_group
DELETE FROM fleet_group WHERE name = ?;

-- name: save_host
INSERT INTO host ({host.columns}) VALUES ({host.parameters})
ON CONFLICT (name) DO UPDATE SET {host.changes};

-- name: remove_host
DELETE FROM host WHERE name = ?;

-- name: save_vm
INSERT INTO vm ({vm.columns}) VALUES ({vm.parameters})
ON CONFLICT (name) DO UPDATE SET {vm.changes};

-- name: save_text
INSERT INTO shared_text VALUES (?, ?) ON CONFLICT (key) DO NOTHING;

-- name: remove_vm
DELETE FROM vm WHERE name = ?;

-- name: save_operation
INSERT INTO operation ({operation.columns}) VALUES ({operation.parameters})
ON CONFLICT (id) DO UPDATE SET {operation.changes};

-- name: save_rollout
INSERT INTO rollout ({rollout.columns}) VALUES ({rollout.parameters})
ON CONFLICT (id) DO UPDATE SET {rollout.changes};

-- name: save_event
INSERT INTO event ({event.columns}) VALUES ({event.parameters})
ON CONFLICT (id) DO UPDATE SET {event.changes};

-- name: save_delivery
-- The time is empty if the scope has not polled since.
INSERT INTO delivery ({delivery.columns}, last_seen_at) VALUES ({delivery.parameters}, ?)
ON CONFLICT (scope) DO UPDATE SET {delivery.changes},
    last_seen_at = CASE WHEN excluded.last_seen_at = '' THEN delivery.last_seen_at ELSE excluded.last_seen_at END;

-- name: save_last_seen
UPDATE delivery SET last_seen_at = ? WHERE scope = ?;

-- name: remove_delivery
DELETE FROM delivery WHERE scope = ?;

-- name: save_webhook
INSERT INTO webhook ({webhook.columns}) VALUES ({webhook.parameters})
ON CONFLICT (name) DO UPDATE SET {webhook.changes};

-- name: remove_webhook
DELETE FROM webhook WHERE name = ?;

-- name: save_undelivered
INSERT INTO undelivered ({undelivered.columns}) VALUES ({undelivered.parameters})
ON CONFLICT (webhook, sequence) DO UPDATE SET {undelivered.changes};

-- name: forget_undelivered
DELETE FROM undelivered WHERE webhook = ? AND sequence = ?;

-- name: save_history
INSERT INTO history ({history.columns}) VALUES ({history.parameters});
