-- Each webhook has one cursor and sends in order. Earlier, rows after its position could be finished too ("ahead").
--
-- The cursor moves to the last finished row, so that no row is sent twice. Unfinished rows before it become undelivered
-- rows with all their attempts. They are sent first, in order.

INSERT OR IGNORE INTO undelivered (webhook, sequence, group_name, attempts, problem, given_up)
SELECT webhook.name, history.sequence, '', 0, '', 0
FROM webhook JOIN history ON history.sequence > webhook.position
    AND history.sequence < (SELECT max(value) FROM json_each(webhook.ahead))
WHERE history.sequence NOT IN (SELECT value FROM json_each(webhook.ahead))
    AND (webhook.groups = '[]' OR history.group_name IN (SELECT value FROM json_each(webhook.groups)))
    AND (webhook.kinds = '[]' OR history.what IN (SELECT value FROM json_each(webhook.kinds)));

-- 80 is the default of webhook_max_attempts. A migration cannot read the setting.
ALTER TABLE undelivered ADD COLUMN attempts_left INTEGER NOT NULL DEFAULT 0;
UPDATE undelivered SET attempts_left = max(80 - attempts, 1) WHERE given_up = 0;
ALTER TABLE undelivered DROP COLUMN given_up;
ALTER TABLE undelivered DROP COLUMN group_name;

UPDATE webhook SET position = max(position, coalesce((SELECT max(value) FROM json_each(ahead)), 0));
ALTER TABLE webhook RENAME COLUMN position TO cursor;
ALTER TABLE webhook DROP COLUMN ahead;
