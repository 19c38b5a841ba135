-- A start loads the events that ended within the last day.
CREATE INDEX event_ended ON event (ended_at) WHERE ended_at IS NOT NULL;
