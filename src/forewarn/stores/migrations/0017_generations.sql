-- A group keeps its generation while it exists: the newest row of history when it was created. A tenant token belongs to
-- one generation of its group. Groups, events and tokens of earlier releases are of the generation 0.
ALTER TABLE fleet_group ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE vm ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE event ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE token ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
