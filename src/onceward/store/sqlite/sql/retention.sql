-- name: lock_old_events
-- Return the ids of the events of one page that are beyond the horizon, as a JSON array. Events that a
-- queued or failed job still needs are left out. Returns the last id of the page.
WITH page AS MATERIALIZED (
    SELECT id, received_at < :now - CAST(:horizon_seconds * 1000000 AS INTEGER) AS is_old
    FROM onceward_events WHERE id > :after ORDER BY id LIMIT :limit
)
SELECT
    max(id) AS last, COALESCE(min(is_old), 0) AS has_more,
    (
        SELECT json_group_array(id) FROM page AS old WHERE is_old AND NOT EXISTS (
            SELECT 1 FROM onceward_jobs j WHERE j.event = old.id AND j.status IN ('queued', 'failed')
        )
    ) AS events
FROM page

-- name: purge_events
-- Delete events with all their rows.
DELETE FROM onceward_attempts WHERE job IN (
    SELECT id FROM onceward_jobs WHERE event IN (SELECT value FROM json_each(:events))
);
DELETE FROM onceward_jobs WHERE event IN (SELECT value FROM json_each(:events));
DELETE FROM onceward_payloads WHERE event IN (SELECT value FROM json_each(:events));
DELETE FROM onceward_deliveries WHERE event IN (SELECT value FROM json_each(:events));
DELETE FROM onceward_body_hashes WHERE event IN (SELECT value FROM json_each(:events));
DELETE FROM onceward_duplicate_bodies WHERE event IN (SELECT value FROM json_each(:events));
DELETE FROM onceward_events WHERE id IN (SELECT value FROM json_each(:events));
SELECT changes() AS purged
