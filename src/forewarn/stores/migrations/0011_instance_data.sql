-- What /metadata/instance shows of a VM. Many VMs have the same user data, custom data and public keys, so each text is
-- stored once in shared_text, and the columns of the VM hold its key. Without a text they are empty.

ALTER TABLE vm ADD COLUMN os TEXT NOT NULL DEFAULT 'linux';
ALTER TABLE vm ADD COLUMN location TEXT NOT NULL DEFAULT 'local';
ALTER TABLE vm ADD COLUMN user_data TEXT NOT NULL DEFAULT '';
ALTER TABLE vm ADD COLUMN custom_data TEXT NOT NULL DEFAULT '';
ALTER TABLE vm ADD COLUMN public_keys TEXT NOT NULL DEFAULT '';

CREATE TABLE shared_text (
    key TEXT PRIMARY KEY,
    text TEXT NOT NULL
) STRICT;
