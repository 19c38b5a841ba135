-- The policy of a group in the fleet file, as JSON, if it was changed at run time since. NULL: it was not, or an earlier
-- release changed it.
ALTER TABLE fleet_group ADD COLUMN file_policy TEXT;
