-- Tokens, responses of idempotency keys, webhooks, and the host of a history row.

CREATE TABLE token (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    group_name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    created_by TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT
) STRICT;

CREATE TABLE kept_answer (
    key TEXT PRIMARY KEY,
    fingerprint TEXT NOT NULL,
    at TEXT NOT NULL,
    status INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE TABLE webhook (
    name TEXT PRIMARY KEY,
    url TEXT NOT NULL,
    secret TEXT NOT NULL,
    groups TEXT NOT NULL,
    kinds TEXT NOT NULL,
    created_by TEXT NOT NULL,
    created_at TEXT NOT NULL,
    -- Every row of history up to here is delivered or in the table below; beyond it, those of the list.
    position INTEGER NOT NULL,
    ahead TEXT NOT NULL
) STRICT;

CREATE TABLE undelivered (
    webhook TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    group_name TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    problem TEXT NOT NULL,
    given_up INTEGER NOT NULL,
    PRIMARY KEY (webhook, sequence)
) STRICT, WITHOUT ROWID;

ALTER TABLE history ADD COLUMN host TEXT NOT NULL DEFAULT '';
UPDATE history SET host = why WHERE what LIKE 'host %';
UPDATE history SET host = coalesce(
    (SELECT json_extract(request, '$.host') FROM operation WHERE operation.id = history.operation), ''
) WHERE operation <> '';
