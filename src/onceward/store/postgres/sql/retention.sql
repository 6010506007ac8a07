-- name: old_events
-- The events of a page that are from before a time. Events that a queued or failed job still needs, that
-- wait for review or were restored since are left out; with an archive also those that have a payload:
-- its drop is what reads the files of the archive again. Rows are locked in the order in which receivers count
-- duplicates, so that the two cannot deadlock.
SELECT e.id FROM onceward.events e
WHERE e.id > :after AND e.id <= :last AND e.received_at < :before AND NOT EXISTS (
    SELECT 1 FROM onceward.jobs j WHERE j.event = e.id AND j.status IN ('queued', 'failed')
)
AND COALESCE(e.final_state, '') <> 'review'
AND NOT EXISTS (
    SELECT 1 FROM onceward.archives a
    WHERE a.restored_at >= :before AND e.id BETWEEN a.first_event AND a.last_event
)
-- if archived
AND NOT EXISTS (
    SELECT 1 FROM onceward.payloads p WHERE p.event = e.id AND p.received_at = e.received_at
)
-- end
ORDER BY e.id
-- if locked
FOR UPDATE
-- end

-- name: purge_jobs
-- Delete jobs that ended for good, with their attempts. The state of their events outlives them: done
-- counts most. One statement, so that the jobs it deletes are those whose states it stored. The events
-- are locked first, in the order of the receivers, as above. The planner expects ten rows of an array,
-- and looks them up by key. A job may have been queued again since the snapshot: its end is checked twice.
WITH
old AS MATERIALIZED (
    SELECT id, event FROM onceward.jobs
    WHERE id > :after AND id <= :last AND status IN ('done', 'ignored', 'cancelled')
    AND finished_at < :before
)
-- if dry_run
SELECT id FROM old
-- end
-- if purge
,
locked AS MATERIALIZED (
    SELECT id FROM onceward.events
    WHERE id = ANY(ARRAY(SELECT event FROM old)) ORDER BY id FOR UPDATE
),
kept AS (
    UPDATE onceward.events e
    SET final_state = CASE
            WHEN final_state = 'succeeded' THEN 'succeeded'
            WHEN EXISTS (
                SELECT 1 FROM onceward.jobs j
                WHERE j.event = e.id AND j.status = 'done' AND j.finished_at < :before
            ) THEN 'succeeded'
            ELSE 'ignored'
        END,
        processed_at = GREATEST(
            processed_at, (SELECT max(j.finished_at) FROM onceward.jobs j WHERE j.event = e.id)
        )
    WHERE e.id = ANY(ARRAY(SELECT id FROM locked))
    RETURNING e.id
),
deleted AS (
    DELETE FROM onceward.jobs j USING kept
    WHERE j.event = kept.id AND j.id = ANY(ARRAY(SELECT id FROM old))
    AND j.status IN ('done', 'ignored', 'cancelled') AND j.finished_at < :before
    RETURNING j.id
),
deleted_attempts AS (
    DELETE FROM onceward.attempts a USING deleted
    WHERE a.job = deleted.id AND a.job = ANY(ARRAY(SELECT id FROM old))
)
SELECT id FROM deleted
-- end

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
SELECT id FROM deleted_events
