-- name: lock_old_events
-- Lock the events of one page that are beyond the horizon, and return their ids. Events that a queued
-- or failed job still needs are left out. Returns the last id of the page.
-- The deletion is a statement of its own, because this one cannot see the redelivery for which it
-- waited.
WITH
page AS MATERIALIZED (
    SELECT
        id, received_at < clock_timestamp() - make_interval(secs => :horizon_seconds) AS is_old
    FROM onceward.events WHERE id > :after ORDER BY id LIMIT :limit
),
old AS MATERIALIZED (
    -- Locked in the order in which receivers count duplicates, so that the two cannot deadlock.
    SELECT e.id FROM onceward.events e
    WHERE e.id IN (SELECT id FROM page WHERE is_old) AND NOT EXISTS (
        SELECT 1 FROM onceward.jobs j WHERE j.event = e.id AND j.status IN ('queued', 'failed')
    )
    ORDER BY e.id
    FOR UPDATE
)
SELECT
    max(id) AS last, COALESCE(bool_and(is_old), false) AS has_more,
    ARRAY(SELECT id FROM old) AS events
FROM page

-- name: purge_events
-- Delete locked events with all their rows.
WITH
old AS MATERIALIZED (
    SELECT id, received_at FROM onceward.events WHERE id = ANY(:events::bigint[])
),
deleted_attempts AS (
    DELETE FROM onceward.attempts a USING onceward.jobs j, old
    WHERE a.job = j.id AND j.event = old.id
),
deleted_jobs AS (
    DELETE FROM onceward.jobs j USING old WHERE j.event = old.id
),
deleted_payloads AS (
    DELETE FROM onceward.payloads p USING old
    WHERE p.event = old.id AND p.received_at = old.received_at
),
deleted_deliveries AS (
    DELETE FROM onceward.deliveries d USING old WHERE d.event = old.id
),
deleted_body_hashes AS (
    DELETE FROM onceward.body_hashes b USING old WHERE b.event = old.id
),
deleted_duplicate_bodies AS (
    DELETE FROM onceward.duplicate_bodies t USING old WHERE t.event = old.id
),
deleted_events AS (
    DELETE FROM onceward.events e USING old WHERE e.id = old.id RETURNING e.id
)
SELECT count(*) AS purged FROM deleted_events
