-- A large commit has several rows with its number. They have one time, so that they are removed together.
ALTER TABLE journal ADD COLUMN part integer NOT NULL DEFAULT 1;
ALTER TABLE journal DROP CONSTRAINT journal_pkey, ADD PRIMARY KEY (number, part);
ALTER TABLE journal ALTER COLUMN written_at SET DEFAULT now();
