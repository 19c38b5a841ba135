-- The name of an enabling was random. It is now a number that counts the enablings of a scope, so that two documents of
-- a scope can be compared. No client has seen the number 1 before, so no old ETag matches.
ALTER TABLE delivery DROP COLUMN enabling;
ALTER TABLE delivery ADD COLUMN enabling INTEGER NOT NULL DEFAULT 1;
