-- name: load_facts
SELECT name, value FROM fact;

-- name: load_groups
SELECT name, kind, update_domains, fault_domains, auto_approve, terminate_notice_seconds, windows
FROM fleet_group ORDER BY rowid;

-- name: load_hosts
SELECT name, state, spare FROM host ORDER BY rowid;

-- name: load_vms
SELECT name, group_name, host, update_domain, fault_domain, address, listen, hostname, priority, size, zone,
    tags, auto_approve, deallocated, home
FROM vm ORDER BY rowid;

-- name: load_operations
SELECT * FROM operation WHERE ended_at IS NULL ORDER BY rowid;

-- name: load_rollouts
SELECT * FROM rollout WHERE ended_at IS NULL ORDER BY rowid;

-- name: load_events
SELECT * FROM event WHERE ended_at IS NULL ORDER BY rowid;

-- name: load_deliveries
SELECT group_name, enabled, enabling, incarnation, heard_at FROM delivery;

-- name: load_webhooks
SELECT name, url, secret, created_by, created_at, groups, kinds, cursor FROM webhook ORDER BY rowid;

-- name: load_undelivered
SELECT webhook, sequence, attempts, attempts_left, problem FROM undelivered;

-- name: last_sequence
SELECT coalesce(max(sequence), 0) FROM history;

-- name: load_tokens
SELECT name, role, group_name, hash, created_by, created_at, expires_at FROM token ORDER BY rowid;

-- name: load_kept
SELECT key, fingerprint, at, status, '' FROM kept_answer;

-- name: kept_answer
SELECT key, fingerprint, at, status, body FROM kept_answer WHERE key = ?;

-- name: event
SELECT * FROM event WHERE id = ?;

-- name: events_beginning
SELECT * FROM event WHERE id >= ? AND id < ? AND (? = '' OR group_name = ?) LIMIT 2;

-- name: events_live
SELECT *, rowid FROM event WHERE ended_at IS NULL AND rowid > :after AND (:group = '' OR group_name = :group)
ORDER BY rowid LIMIT :limit;

-- name: events_all
SELECT *, rowid FROM event WHERE (:after = 0 OR rowid < :after) AND (:group = '' OR group_name = :group)
ORDER BY rowid DESC LIMIT :limit;

-- name: operation
SELECT * FROM operation WHERE id = ?;

-- name: operations_beginning
SELECT * FROM operation WHERE id >= ? AND id < ? LIMIT 2;

-- name: operations_live
SELECT *, rowid FROM operation WHERE ended_at IS NULL AND rowid > :after
ORDER BY rowid LIMIT :limit;

-- name: operations_all
SELECT *, rowid FROM operation WHERE (:after = 0 OR rowid < :after)
ORDER BY rowid DESC LIMIT :limit;

-- name: rollouts_beginning
SELECT * FROM rollout WHERE id >= ? AND id < ? LIMIT 2;

-- name: rollouts_live
SELECT *, rowid FROM rollout WHERE ended_at IS NULL AND rowid > :after
ORDER BY rowid LIMIT :limit;

-- name: rollouts_all
SELECT *, rowid FROM rollout WHERE (:after = 0 OR rowid < :after)
ORDER BY rowid DESC LIMIT :limit;

-- name: history
SELECT at, what, by, sequence, group_name, event, operation, vms, why, host FROM history WHERE sequence > :after

-- Each of these is added to it where it is asked for.

-- name: history_before
AND sequence < :before

-- name: history_operation
AND operation = :operation AND operation <> ''

-- name: history_event
-- Also the rows that are about its operation as a whole.
AND event IN (:event, '')

-- name: history_groups
AND group_name IN (SELECT value FROM json_each(:groups))

-- name: history_vm
-- That its name is somewhere in the list is found quickly, and excludes most rows.
AND instr(vms, :quoted_vm) > 0 AND EXISTS (SELECT 1 FROM json_each(vms) WHERE value = :vm)

-- name: history_host
AND (host = :host OR EXISTS (
    SELECT 1 FROM operation, json_each(moves) AS move
    WHERE operation.id = history.operation AND moves <> '[]' AND json_extract(move.value, '$[1]') = :host
))

-- name: history_type
AND EXISTS (SELECT 1 FROM operation WHERE operation.id = history.operation AND json_extract(request, '$.type') = :type)

-- name: history_cause
AND EXISTS (SELECT 1 FROM operation WHERE operation.id = history.operation AND cause = :cause)

-- name: history_by
AND by = :by

-- name: history_what
AND what IN (SELECT value FROM json_each(:what))

-- name: history_since
AND at >= :since

-- name: history_until
AND at < :until

-- name: history_oldest_first
ORDER BY sequence LIMIT :limit

-- name: history_newest_first
ORDER BY sequence DESC LIMIT :limit

-- name: oldest_sequence
SELECT coalesce(min(sequence), 1) FROM history;

-- The first of each that is to be kept, looked for from the oldest on: what came about after a moment has not
-- ended before it, and all that is kept need not be gone through.

-- name: expired_history
-- The newest stays in any case: the sequence goes on from it.
SELECT coalesce(
    (SELECT sequence FROM history WHERE at >= :before ORDER BY sequence LIMIT 1), (SELECT max(sequence) FROM history), 0
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

-- name: expired_answers
SELECT coalesce(
    (SELECT rowid FROM kept_answer WHERE at >= :before ORDER BY rowid LIMIT 1),
    (SELECT max(rowid) + 1 FROM kept_answer), 0
);

-- name: remove_events
-- With their operations: an event that is over may be of an operation that is not.
DELETE FROM event WHERE id IN (
    SELECT named.value FROM (
        SELECT events FROM operation WHERE rowid < :operations AND ended_at < :before ORDER BY rowid LIMIT :most
    ) AS expired, json_each(expired.events) AS named
);

-- name: remove_operations
DELETE FROM operation WHERE rowid IN (
    SELECT rowid FROM operation WHERE rowid < :operations AND ended_at < :before ORDER BY rowid LIMIT :most
);

-- name: remove_rollouts
DELETE FROM rollout WHERE rowid IN (
    SELECT rowid FROM rollout WHERE rowid < :rollouts AND ended_at < :before ORDER BY rowid LIMIT :most
);

-- name: remove_history
DELETE FROM history WHERE sequence < min(:history, (SELECT min(sequence) FROM history) + :most);

-- name: remove_undelivered
DELETE FROM undelivered WHERE sequence < (SELECT min(sequence) FROM history);

-- name: remove_answers
DELETE FROM kept_answer WHERE rowid < min(:answers, (SELECT min(rowid) FROM kept_answer) + :most);

-- name: save_fact
INSERT INTO fact VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: save_token
INSERT INTO token VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET role = excluded.role, group_name = excluded.group_name, hash = excluded.hash,
    created_by = excluded.created_by, created_at = excluded.created_at, expires_at = excluded.expires_at;

-- name: remove_token
DELETE FROM token WHERE name = ?;

-- name: save_kept
-- Replaced, not updated: rowids stay in the order of time, by which the oldest are removed.
INSERT OR REPLACE INTO kept_answer VALUES (?, ?, ?, ?, ?);

-- name: save_group
INSERT INTO fleet_group VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, update_domains = excluded.update_domains,
    fault_domains = excluded.fault_domains, auto_approve = excluded.auto_approve,
    terminate_notice_seconds = excluded.terminate_notice_seconds, windows = excluded.windows;

-- name: remove_group
DELETE FROM fleet_group WHERE name = ?;

-- name: save_host
INSERT INTO host VALUES (?, ?, ?)
ON CONFLICT (name) DO UPDATE SET state = excluded.state, spare = excluded.spare;

-- name: remove_host
DELETE FROM host WHERE name = ?;

-- name: save_vm
INSERT INTO vm VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET group_name = excluded.group_name, host = excluded.host,
    update_domain = excluded.update_domain, fault_domain = excluded.fault_domain, address = excluded.address,
    listen = excluded.listen, hostname = excluded.hostname, priority = excluded.priority, size = excluded.size,
    zone = excluded.zone, tags = excluded.tags, auto_approve = excluded.auto_approve,
    deallocated = excluded.deallocated, home = excluded.home;

-- name: remove_vm
DELETE FROM vm WHERE name = ?;

-- name: save_operation
INSERT INTO operation VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET progress = excluded.progress, started_at = excluded.started_at,
    carried_out_at = excluded.carried_out_at, settles_at = excluded.settles_at, ended_at = excluded.ended_at,
    vms = excluded.vms, moves = excluded.moves, holds_until = excluded.holds_until, health = excluded.health, outcome = excluded.outcome;

-- name: save_rollout
INSERT INTO rollout VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET stage = excluded.stage, wave = excluded.wave, waiting = excluded.waiting,
    under_way = excluded.under_way, done = excluded.done, skipped = excluded.skipped, next_at = excluded.next_at,
    outcome = excluded.outcome, ended_at = excluded.ended_at;

-- name: save_event
INSERT INTO event VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET status = excluded.status, resources = excluded.resources,
    not_before = excluded.not_before, approved_at = excluded.approved_at, approved_by = excluded.approved_by,
    started_at = excluded.started_at, ended_at = excluded.ended_at;

-- name: save_delivery
INSERT INTO delivery VALUES (:group, :enabled, :enabling, :incarnation, coalesce(:heard_at, ''))
ON CONFLICT (group_name) DO UPDATE SET enabled = excluded.enabled, enabling = excluded.enabling,
    incarnation = excluded.incarnation,
    heard_at = CASE WHEN :heard_at IS NULL THEN heard_at ELSE excluded.heard_at END;

-- name: save_heard
UPDATE delivery SET heard_at = ? WHERE group_name = ?;

-- name: remove_delivery
DELETE FROM delivery WHERE group_name = ?;

-- name: save_webhook
INSERT INTO webhook (name, url, secret, created_by, created_at, groups, kinds, cursor) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET url = excluded.url, secret = excluded.secret, created_by = excluded.created_by,
    created_at = excluded.created_at, groups = excluded.groups, kinds = excluded.kinds, cursor = excluded.cursor;

-- name: remove_webhook
DELETE FROM webhook WHERE name = ?;

-- name: save_undelivered
INSERT INTO undelivered (webhook, sequence, attempts, attempts_left, problem) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (webhook, sequence) DO UPDATE SET attempts = excluded.attempts, attempts_left = excluded.attempts_left,
    problem = excluded.problem;

-- name: forget_undelivered
DELETE FROM undelivered WHERE webhook = ? AND sequence = ?;

-- name: save_history
INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);
