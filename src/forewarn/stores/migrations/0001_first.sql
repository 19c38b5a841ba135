-- Times are ISO 8601 text in UTC with microseconds, so that they sort by time.
-- Lists are JSON. Rowids keep the order of creation.

CREATE TABLE fact (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE fleet_group (
    name TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    update_domains INTEGER NOT NULL,
    fault_domains INTEGER NOT NULL,
    auto_approve TEXT NOT NULL
) STRICT;

CREATE TABLE host (
    name TEXT PRIMARY KEY
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
    auto_approve TEXT NOT NULL
) STRICT;

CREATE TABLE operation (
    id TEXT PRIMARY KEY,
    cause TEXT NOT NULL,
    vms TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    requested_at TEXT NOT NULL,
    progress TEXT NOT NULL,
    events TEXT NOT NULL,
    unnoticed TEXT NOT NULL,
    started_at TEXT,
    carried_out_at TEXT,
    settles_at TEXT,
    ended_at TEXT
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
    ended_at TEXT
) STRICT;
CREATE INDEX event_live ON event (ended_at) WHERE ended_at IS NULL;

CREATE TABLE delivery (
    group_name TEXT PRIMARY KEY,
    enabled INTEGER NOT NULL,
    enabling TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    heard_at TEXT NOT NULL
) STRICT;

-- One sequence without gaps for all changes.
CREATE TABLE history (
    sequence INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    what TEXT NOT NULL,
    by TEXT NOT NULL,
    group_name TEXT NOT NULL,
    event TEXT NOT NULL,
    operation TEXT NOT NULL,
    vms TEXT NOT NULL,
    why TEXT NOT NULL
) STRICT;
-- The history of an event is found by its operation, so one index is enough.
CREATE INDEX history_operation ON history (operation) WHERE operation <> '';
