-- A recommendation has a status of its own. Documents of the preview api-version change by it, so that their scopes get
-- the next incarnation.
UPDATE delivery SET incarnation = incarnation + 1 WHERE scope IN (
    SELECT scope FROM event WHERE type = 'SpotRebalanceRecommendation' AND status = 'Scheduled'
);
UPDATE event SET status = 'Advisory' WHERE type = 'SpotRebalanceRecommendation' AND status = 'Scheduled';
