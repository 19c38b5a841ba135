-- A row of history has the type and the cause of its operation, its event as it was then, and what the event waited for.
--
-- Earlier rows get the type and the cause. These never change. Their events have changed since, so there is no snapshot.

ALTER TABLE history ADD COLUMN type TEXT NOT NULL DEFAULT '';
ALTER TABLE history ADD COLUMN cause TEXT NOT NULL DEFAULT '';
ALTER TABLE history ADD COLUMN snapshot TEXT;
ALTER TABLE history ADD COLUMN waits TEXT NOT NULL DEFAULT '[]';

UPDATE history SET (type, cause) = (
    SELECT coalesce(json_extract(request, '$.type'), ''), cause FROM operation WHERE operation.id = history.operation
) WHERE operation IN (SELECT id FROM operation);
