-- History has the columns kind, reason and time. Kinds have one form everywhere: words with hyphens.

ALTER TABLE history RENAME COLUMN at TO time;
ALTER TABLE history RENAME COLUMN what TO kind;
ALTER TABLE history RENAME COLUMN why TO reason;

CREATE TEMPORARY TABLE renamed_kind (old TEXT PRIMARY KEY, new TEXT NOT NULL);
INSERT INTO renamed_kind VALUES
    ('not told', 'not-notified'),
    ('carried out', 'executed'),
    ('said to be done', 'marked-done'),
    ('wave announced', 'wave-scheduled'),
    ('rollout done', 'rollout-completed'),
    ('host in-use', 'host-in-service'),
    ('fault over', 'fault-expired');

-- All other kinds keep their words, with hyphens instead of blanks.
UPDATE history
SET kind = coalesce((SELECT new FROM renamed_kind WHERE old = kind), replace(kind, ' ', '-'))
WHERE instr(kind, ' ') > 0;

UPDATE webhook
SET kinds = (
    SELECT json_group_array(coalesce((SELECT new FROM renamed_kind WHERE old = value), replace(value, ' ', '-')))
    FROM json_each(webhook.kinds)
)
WHERE instr(kinds, ' ') > 0;

DROP TABLE renamed_kind;
