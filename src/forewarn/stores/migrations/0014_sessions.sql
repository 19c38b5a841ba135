-- Sessions of the portal, and one-time links, are tokens that were made from another token. An empty purpose: a token
-- for the API.
ALTER TABLE token ADD COLUMN purpose TEXT NOT NULL DEFAULT '';
ALTER TABLE token ADD COLUMN parent TEXT NOT NULL DEFAULT '';
