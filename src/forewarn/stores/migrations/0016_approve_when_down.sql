-- Whether events are approved automatically while all VMs of a scope are deallocated. Azure's default.
ALTER TABLE fleet_group ADD COLUMN approve_when_down INTEGER NOT NULL DEFAULT 1;
ALTER TABLE vm ADD COLUMN approve_when_down INTEGER NOT NULL DEFAULT 1;
