-- Complete requests, destinations and health of VMs; host states; policies; rollouts.

ALTER TABLE operation ADD COLUMN request TEXT NOT NULL DEFAULT '{}';
ALTER TABLE operation ADD COLUMN moves TEXT NOT NULL DEFAULT '[]';
ALTER TABLE operation ADD COLUMN holds_until TEXT;
ALTER TABLE operation ADD COLUMN health TEXT NOT NULL DEFAULT '';
ALTER TABLE operation ADD COLUMN outcome TEXT NOT NULL DEFAULT '';
UPDATE operation SET request = json_object(
    'cause', cause,
    'type', CASE cause WHEN 'restart' THEN 'Reboot' WHEN 'redeploy' THEN 'Redeploy' ELSE 'Freeze' END,
    'duration', CASE cause WHEN 'host-update' THEN 9 END
);

ALTER TABLE vm ADD COLUMN deallocated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE vm ADD COLUMN home TEXT NOT NULL DEFAULT '';

ALTER TABLE host ADD COLUMN state TEXT NOT NULL DEFAULT 'in-use';
ALTER TABLE host ADD COLUMN spare INTEGER NOT NULL DEFAULT 0;

ALTER TABLE fleet_group ADD COLUMN terminate_notice_seconds REAL;
ALTER TABLE fleet_group ADD COLUMN windows TEXT NOT NULL DEFAULT '[]';

CREATE TABLE rollout (
    id TEXT PRIMARY KEY,
    patterns TEXT NOT NULL,
    course TEXT NOT NULL,
    requested_by TEXT NOT NULL,
    requested_at TEXT NOT NULL,
    stage TEXT NOT NULL,
    wave INTEGER NOT NULL,
    waiting TEXT NOT NULL,
    under_way TEXT NOT NULL,
    done TEXT NOT NULL,
    skipped TEXT NOT NULL,
    next_at TEXT,
    outcome TEXT NOT NULL,
    ended_at TEXT
) STRICT;
CREATE INDEX rollout_live ON rollout (ended_at) WHERE ended_at IS NULL;
