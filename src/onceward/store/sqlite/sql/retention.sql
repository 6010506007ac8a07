-- name: purge_events
-- Delete the events of one page that are beyond the horizon, with all their rows. Events that a
-- queued or failed job still needs are kept. Returns the last id of the page.
CREATE TEMP TABLE IF NOT EXISTS onceward_old (id INTEGER PRIMARY KEY, source, body_sha256);
DELETE FROM onceward_old;
INSERT INTO onceward_old
SELECT id, source, body_sha256 FROM (
    SELECT * FROM onceward_events WHERE id > :after ORDER BY id LIMIT :limit
) AS page
WHERE received_at < :now - CAST(:horizon_seconds * 1000000 AS INTEGER)
AND NOT EXISTS (
    SELECT 1 FROM onceward_jobs j WHERE j.event = page.id AND j.status IN ('queued', 'failed')
);
CREATE TEMP TABLE IF NOT EXISTS onceward_page (last INTEGER, has_more INTEGER);
DELETE FROM onceward_page;
INSERT INTO onceward_page
SELECT
    max(id),
    COALESCE(min(received_at < :now - CAST(:horizon_seconds * 1000000 AS INTEGER)), 0)
FROM (SELECT id, received_at FROM onceward_events WHERE id > :after ORDER BY id LIMIT :limit);
DELETE FROM onceward_attempts
WHERE job IN (SELECT j.id FROM onceward_jobs j WHERE j.event IN (SELECT id FROM onceward_old));
DELETE FROM onceward_jobs WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_payloads WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_deliveries WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_body_hashes
WHERE (source, body_sha256, event) IN (SELECT source, body_sha256, id FROM onceward_old);
DELETE FROM onceward_duplicate_bodies WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_events WHERE id IN (SELECT id FROM onceward_old);
SELECT last, has_more, (SELECT count(*) FROM onceward_old) AS purged FROM onceward_page
