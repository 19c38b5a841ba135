-- The functions use the tables of their own schema, whatever the session searches.
ALTER FUNCTION check_epoch(bigint) SET search_path FROM CURRENT;
ALTER FUNCTION save_journal(bigint, bigint, bytea, text) SET search_path FROM CURRENT;
