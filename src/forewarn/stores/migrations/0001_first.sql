-- Times are ISO 8601 text in UTC with microseconds, so that they sort by time. Lists are JSON. Rowids keep the order of
-- creation.

CREATE TABLE fact (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE fleet_group (
    name TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    update_domains INTEGER NOT NULL,
    fault_domains INTEGER NOT NULL,
    auto_approve TEXT NOT NULL,
    terminate_notice_seconds REAL,
    windows TEXT NOT NULL,
    mode TEXT NOT NULL,
    visibility TEXT NOT NULL,
    eviction_policy TEXT NOT NULL,
    os_image_notice REAL,
    file_policy TEXT,
    approve_when_down INTEGER NOT NULL,
    generation INTEGER NOT NULL
) STRICT;

CREATE TABLE host (
    name TEXT PRIMARY KEY,
    state TEXT NOT NULL,
    spare INTEGER NOT NULL
) STRICT;

CREATE TABLE vm (
    name TEXT PRIMARY KEY,
    group_name TEXT NOT NULL,
    host TEXT NOT NULL,
    update_domain INTEGER NOT NULL,
    fault_domain INTEGER NOT NULL,
    address TEXT NOT NULL,
    listen TEXT NOT NULL,
    hostname TEXT NOT NULL,
    priority TEXT NOT NULL,
    size TEXT NOT NULL,
    zone TEXT NOT NULL,
    tags TEXT NOT NULL,
    auto_approve TEXT NOT NULL,
    deallocated INTEGER NOT NULL,
    configured_host TEXT NOT NULL,
    placement_group INTEGER NOT NULL,
    terminate_notice_seconds REAL,
    eviction_policy TEXT NOT NULL,
    os TEXT NOT NULL,
    location TEXT NOT NULL,
    user_data TEXT NOT NULL,
    custom_data TEXT NOT NULL,
    public_keys TEXT NOT NULL,
    approve_when_down INTEGER NOT NULL,
    generation INTEGER NOT NULL
) STRICT;

CREATE TABLE operation (
    id TEXT PRIMARY KEY,
    cause TEXT NOT NULL,
    vms TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    requested_at TEXT NOT NULL,
    status TEXT NOT NULL,
    events TEXT NOT NULL,
    not_notified TEXT NOT NULL,
    started_at TEXT,
    executed_at TEXT,
    settles_at TEXT,
    ended_at TEXT,
    request TEXT NOT NULL,
    moves TEXT NOT NULL,
    holds_until TEXT,
    health TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;
-- On a column that does not change while the row is active, so that updates do not touch the index.
CREATE INDEX operation_live ON operation (ended_at) WHERE ended_at IS NULL;

CREATE TABLE event (
    id TEXT PRIMARY KEY,
    operation TEXT NOT NULL REFERENCES operation (id),
    group_name TEXT NOT NULL,
    type TEXT NOT NULL,
    status TEXT NOT NULL,
    resources TEXT NOT NULL,
    not_before TEXT NOT NULL,
    description TEXT NOT NULL,
    source TEXT NOT NULL,
    duration_seconds REAL,
    created_at TEXT NOT NULL,
    approved_at TEXT,
    approved_by TEXT,
    started_at TEXT,
    ended_at TEXT,
    scope TEXT NOT NULL,
    generation INTEGER NOT NULL
) STRICT;
CREATE INDEX event_live ON event (ended_at) WHERE ended_at IS NULL;

CREATE TABLE delivery (
    scope TEXT PRIMARY KEY,
    enabled INTEGER NOT NULL,
    incarnation INTEGER NOT NULL,
    last_seen_at TEXT NOT NULL,
    enabling INTEGER NOT NULL
) STRICT;

-- One sequence without gaps for all changes.
CREATE TABLE history (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    kind TEXT NOT NULL,
    by TEXT NOT NULL,
    group_name TEXT NOT NULL,
    event TEXT NOT NULL,
    operation TEXT NOT NULL,
    vms TEXT NOT NULL,
    reason TEXT NOT NULL,
    host TEXT NOT NULL,
    type TEXT NOT NULL,
    cause TEXT NOT NULL,
    snapshot TEXT,
    waits TEXT NOT NULL
) STRICT;
-- The history of an event is found by its operation, so one index is enough.
CREATE INDEX history_operation ON history (operation) WHERE operation <> '';

CREATE TABLE rollout (
    id TEXT PRIMARY KEY,
    patterns TEXT NOT NULL,
    settings TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    requested_at TEXT NOT NULL,
    status TEXT NOT NULL,
    wave INTEGER NOT NULL,
    pending TEXT NOT NULL,
    in_progress TEXT NOT NULL,
    done TEXT NOT NULL,
    skipped TEXT NOT NULL,
    next_wave_at TEXT,
    reason TEXT NOT NULL,
    ended_at TEXT
) STRICT;
CREATE INDEX rollout_live ON rollout (ended_at) WHERE ended_at IS NULL;

CREATE TABLE token (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    group_name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    created_by TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT,
    purpose TEXT NOT NULL,
    parent TEXT NOT NULL,
    generation INTEGER NOT NULL
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
    cursor INTEGER NOT NULL
) STRICT;

CREATE TABLE undelivered (
    webhook TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    error TEXT NOT NULL,
    attempts_left INTEGER NOT NULL,
    PRIMARY KEY (webhook, sequence)
) STRICT, WITHOUT ROWID;
CREATE INDEX event_ended ON event (ended_at) WHERE ended_at IS NOT NULL;

CREATE TABLE shared_text (
    key TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT;
