-- A scale set has several scopes: placement groups, or each VM for itself. All other groups have one.

ALTER TABLE vm ADD COLUMN placement_group INTEGER NOT NULL DEFAULT 1;
ALTER TABLE fleet_group ADD COLUMN mode TEXT NOT NULL DEFAULT 'uniform';
ALTER TABLE fleet_group ADD COLUMN visibility TEXT NOT NULL DEFAULT 'group';
ALTER TABLE event ADD COLUMN scope TEXT NOT NULL DEFAULT '';
UPDATE event SET scope = group_name;
ALTER TABLE delivery RENAME COLUMN group_name TO scope;
