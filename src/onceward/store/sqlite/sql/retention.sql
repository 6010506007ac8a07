-- name: old_events
-- The events of a page that are from before a time. Events that a queued or failed job still needs, that
-- wait for review or were restored since are left out; with an archive also those that have a payload:
-- its drop is what reads the files of the archive again. The only writer needs no row locks.
SELECT id FROM onceward_events AS old
WHERE id > :after AND id <= :last AND received_at < :before AND NOT EXISTS (
    SELECT 1 FROM onceward_jobs j WHERE j.event = old.id AND j.status IN ('queued', 'failed')
)
AND COALESCE(old.final_state, '') <> 'review'
AND NOT EXISTS (
    SELECT 1 FROM onceward_archives a
    WHERE a.restored_at >= :before AND old.id BETWEEN a.first_event AND a.last_event
)
-- if archived
AND NOT EXISTS (SELECT 1 FROM onceward_payloads p WHERE p.event = old.id)
-- end

-- name: purge_jobs
-- Delete jobs that ended for good, with their attempts. The state of their events outlives them: done
-- counts most.
-- if dry_run
SELECT id FROM onceward_jobs
-- end
-- if purge
UPDATE onceward_events
SET final_state = CASE
        WHEN final_state = 'succeeded' THEN 'succeeded'
        WHEN EXISTS (
            SELECT 1 FROM onceward_jobs j
            WHERE j.event = onceward_events.id AND j.status = 'done' AND j.finished_at < :before
        ) THEN 'succeeded'
        ELSE 'ignored'
    END,
    processed_at = (
        SELECT max(ended.at)
        FROM (
            SELECT j.finished_at AS at FROM onceward_jobs j WHERE j.event = onceward_events.id
            UNION ALL SELECT onceward_events.processed_at
        ) AS ended
    )
WHERE id IN (
    SELECT event FROM onceward_jobs
    WHERE id > :after AND id <= :last AND status IN ('done', 'ignored', 'cancelled')
    AND finished_at < :before
);
DELETE FROM onceward_attempts WHERE job IN (
    SELECT id FROM onceward_jobs
    WHERE id > :after AND id <= :last AND status IN ('done', 'ignored', 'cancelled')
    AND finished_at < :before
);
DELETE FROM onceward_jobs
-- end
WHERE id > :after AND id <= :last AND status IN ('done', 'ignored', 'cancelled')
AND finished_at < :before
-- if purge
RETURNING id
-- end

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
DELETE FROM onceward_events WHERE id IN (SELECT value FROM json_each(:events)) RETURNING id
