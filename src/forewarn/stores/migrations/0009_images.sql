-- Notice of reimages and OS image upgrades of a scale set.
ALTER TABLE fleet_group ADD COLUMN os_image_notice REAL;

-- A start loads the events that ended within the last day.
CREATE INDEX event_ended ON event (ended_at) WHERE ended_at IS NOT NULL;
