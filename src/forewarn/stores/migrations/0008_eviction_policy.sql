-- Terminate notices of single VMs, and what happens to evicted VMs.

ALTER TABLE vm ADD COLUMN terminate_notice_seconds REAL;
ALTER TABLE vm ADD COLUMN eviction_policy TEXT NOT NULL DEFAULT '';
ALTER TABLE fleet_group ADD COLUMN eviction_policy TEXT NOT NULL DEFAULT '';
