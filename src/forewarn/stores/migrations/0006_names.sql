-- Columns, members of stored JSON, the state of a host and the status of a rollout get the names of the core and the API.

ALTER TABLE operation RENAME COLUMN progress TO status;
ALTER TABLE operation RENAME COLUMN unnoticed TO not_notified;
ALTER TABLE operation RENAME COLUMN carried_out_at TO executed_at;
ALTER TABLE operation RENAME COLUMN outcome TO reason;
UPDATE operation SET request = json_remove(
    json_set(request, '$.postpone_deadline', json_extract(request, '$.deadline')), '$.deadline'
) WHERE json_type(request, '$.deadline') IS NOT NULL;
UPDATE operation SET request = json_remove(
    json_set(request, '$.health_timeout', json_extract(request, '$.health_time')), '$.health_time'
) WHERE json_type(request, '$.health_time') IS NOT NULL;

ALTER TABLE rollout RENAME COLUMN course TO settings;
ALTER TABLE rollout RENAME COLUMN stage TO status;
UPDATE rollout SET status = 'running' WHERE status = 'walking';
ALTER TABLE rollout RENAME COLUMN waiting TO pending;
ALTER TABLE rollout RENAME COLUMN under_way TO in_progress;
ALTER TABLE rollout RENAME COLUMN next_at TO next_wave_at;
ALTER TABLE rollout RENAME COLUMN outcome TO reason;
UPDATE rollout SET settings = json_remove(
    json_set(settings, '$.postpone_deadline', json_extract(settings, '$.deadline')), '$.deadline'
) WHERE json_type(settings, '$.deadline') IS NOT NULL;
UPDATE rollout SET settings = json_remove(
    json_set(settings, '$.max_unavailable', json_extract(settings, '$.budget')), '$.budget'
) WHERE json_type(settings, '$.budget') IS NOT NULL;
UPDATE rollout SET settings = json_remove(
    json_set(settings, '$.health_timeout', json_extract(settings, '$.health_time')), '$.health_time'
) WHERE json_type(settings, '$.health_time') IS NOT NULL;

ALTER TABLE vm RENAME COLUMN home TO configured_host;
UPDATE host SET state = 'in-service' WHERE state = 'in-use';
ALTER TABLE delivery RENAME COLUMN heard_at TO last_seen_at;
ALTER TABLE undelivered RENAME COLUMN problem TO error;
