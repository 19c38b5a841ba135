-- Which database the last leader has used, in words of database_mark; or why numbers must be skipped. Empty: no leader
-- of this release has used it. A restored backup has the mark of the database from which it was made.
ALTER TABLE service ADD COLUMN mark text COLLATE "C" NOT NULL DEFAULT '';
