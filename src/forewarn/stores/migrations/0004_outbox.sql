-- Each webhook has one cursor, and sends in order. Until now rows beyond its position could be finished too ("ahead").
--
-- The cursor goes to the last of those, so that none is sent twice. What was neither finished nor tried before it
-- becomes an undelivered row with all of its attempts, and so do rows that were retried or waited behind such a one:
-- they are sent first, in their order.

INSERT OR IGNORE INTO undelivered (webhook, sequence, group_name, attempts, problem, given_up)
SELECT webhook.name, history.sequence, '', 0, '', 0
FROM webhook JOIN history ON history.sequence > webhook.position
    AND history.sequence < (SELECT max(value) FROM json_each(webhook.ahead))
WHERE history.sequence NOT IN (SELECT value FROM json_each(webhook.ahead))
    AND (webhook.groups = '[]' OR history.group_name IN (SELECT value FROM json_each(webhook.groups)))
    AND (webhook.kinds = '[]' OR history.what IN (SELECT value FROM json_each(webhook.kinds)));

-- 80 is the default of webhook_attempts. The setting itself is not known here.
ALTER TABLE undelivered ADD COLUMN attempts_left INTEGER NOT NULL DEFAULT 0;
UPDATE undelivered SET attempts_left = max(80 - attempts, 1) WHERE given_up = 0;
ALTER TABLE undelivered DROP COLUMN given_up;
ALTER TABLE undelivered DROP COLUMN group_name;

UPDATE webhook SET position = max(position, coalesce((SELECT max(value) FROM json_each(ahead)), 0));
ALTER TABLE webhook RENAME COLUMN position TO cursor;
ALTER TABLE webhook DROP COLUMN ahead;
