-- What the nodes of a service share besides the store: the lease, their list, the journal, and settings. This is the
-- only file whose statements read the time: the clock of the database decides about the lease.

-- name: end_holder
-- Ends the transactions of a leader that was stopped or cut off in the middle of a commit, or of the renewal of its lease:
-- they would hold the lock of the lease. They may be of earlier connections of this node itself.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity CROSS JOIN lease WHERE expires_at < clock_timestamp() AND (
    application_name = :writer || holder
    OR application_name = :lease || holder AND state IS DISTINCT FROM 'idle' AND pid <> pg_backend_pid()
);

-- name: take_lease
UPDATE lease SET holder = :node, epoch = epoch + 1, expires_at = clock_timestamp() + make_interval(secs => :seconds)
WHERE expires_at < clock_timestamp()
RETURNING epoch;

-- name: renew_lease
UPDATE lease SET expires_at = clock_timestamp() + make_interval(secs => :seconds) WHERE holder = :node
RETURNING epoch;

-- name: raise_epoch
-- After this, no transaction with the earlier epoch can commit.
UPDATE lease SET epoch = epoch + 1 WHERE holder = :node AND epoch = :epoch
RETURNING epoch;

-- name: release_lease
UPDATE lease SET expires_at = '-infinity' WHERE holder = :node;

-- name: lease
-- Before version 17, PostgreSQL cannot subtract infinite times.
SELECT holder, epoch,
    extract(epoch FROM greatest(expires_at, clock_timestamp() - interval '1 second') - clock_timestamp())::float8,
    clock_timestamp()
FROM lease;

-- name: report_node
INSERT INTO node (id, name, address, control, certificate, version, started_at, position, seen_at)
VALUES (:id, :name, :address, :control, :certificate, :version, :started_at, :position, clock_timestamp())
ON CONFLICT (id) DO UPDATE SET certificate = excluded.certificate, position = excluded.position,
    seen_at = excluded.seen_at;

-- name: nodes
SELECT id, name, address, control, certificate, version, started_at, position,
    extract(epoch FROM clock_timestamp() - seen_at)::float8
FROM node ORDER BY name, started_at;

-- name: remove_node
DELETE FROM node WHERE id = :id;

-- name: remove_lost_nodes
DELETE FROM node WHERE seen_at < clock_timestamp() - make_interval(secs => :seconds);

-- name: journal_after
-- The row that the node has last, without its data: if it is another one, the database has lost commits. Then the next
-- rows, and the remaining ones of the last commit: always all rows of a commit, or none.
SELECT number, CASE WHEN number > :after THEN data ELSE '' END, epoch FROM journal
WHERE number >= :after AND (number > :after OR part = 1) AND number <= greatest(:after, (
    SELECT max(number) FROM (SELECT number FROM journal WHERE number > :after ORDER BY number, part LIMIT :limit) AS next
)) ORDER BY number, part;

-- name: journal_position
SELECT number, epoch FROM journal WHERE number >= :number ORDER BY number LIMIT 1;

-- name: committed_epoch
SELECT epoch FROM journal WHERE number = :number;

-- name: newest_journal_number
SELECT coalesce(max(number), 0) FROM journal;

-- name: trim_journal
-- About so many rows: always all rows of a commit, or none. The newest commit stays, because the numbers continue from
-- it. They have no gaps.
DELETE FROM journal WHERE written_at < clock_timestamp() - make_interval(secs => :seconds)
AND number < (SELECT max(number) FROM journal) AND number <= (
    SELECT max(number) FROM (SELECT number FROM journal ORDER BY number, part LIMIT :limit) AS first
);

-- name: lock_shared_settings
LOCK TABLE shared_setting IN EXCLUSIVE MODE;

-- name: shared_settings
SELECT name, value FROM shared_setting;

-- name: remove_shared_settings
DELETE FROM shared_setting;

-- name: save_shared_setting
INSERT INTO shared_setting (name, value) VALUES (:name, :value);

-- name: skip_epochs
-- Epochs that were lost with commits may be known to a leader that still runs.
UPDATE lease SET epoch = epoch + :skipped WHERE holder = :node AND epoch = :epoch
RETURNING epoch;

-- name: database_mark
-- The saved mark, and what it would be now. A backup that is restored makes new tables. A standby that takes over, and a
-- restore to a point in time, begin a new timeline.
SELECT mark, concat_ws(' ', system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()),
    service.tableoid, left(pg_walfile_name(pg_current_wal_lsn()), 8))
FROM service CROSS JOIN pg_control_system();

-- name: database_mark_without_server
-- For a user who may not execute these functions.
SELECT mark, concat_ws(' ', '-', (SELECT oid FROM pg_database WHERE datname = current_database()), service.tableoid, '-')
FROM service;

-- name: set_database_mark
UPDATE service SET mark = :mark WHERE mark = :before
RETURNING mark;

-- name: report_loss
-- The first report counts. The line before it still says which database it was.
UPDATE service SET mark = concat(mark, :report::text) WHERE strpos(mark, :report_start) = 0;

-- name: report_restore
UPDATE service SET mark = :mark;

-- name: service
SELECT forewarn_schema, secret FROM service;
