-- One fact has the hash of the last fleet file. Before, each path had its own, and nobody knew which was the last.

INSERT INTO fact (name, value)
SELECT DISTINCT 'fleet file', value FROM fact
WHERE name LIKE 'fleet file %'
    AND (SELECT count(DISTINCT value) FROM fact WHERE name LIKE 'fleet file %') = 1;
DELETE FROM fact WHERE name LIKE 'fleet file %';
