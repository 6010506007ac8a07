-- fragment: event_state
-- The state of an event e, from its jobs and from those that were purged; and when the last one ended,
-- unless one is not over. The statement has the ids of the jobs under a lease as `leased`.
    (
        SELECT CASE
            WHEN sum(j.status = 'queued' AND j.id IN (SELECT id FROM leased)) THEN 'processing'
            WHEN sum(j.status = 'queued') THEN 'pending'
            WHEN sum(j.status = 'failed') THEN 'failed'
            WHEN sum(j.status = 'done') OR e.final_state = 'succeeded' THEN 'succeeded'
            WHEN count(*) = 0 AND e.final_state = 'review' THEN 'review'
            ELSE 'ignored'
        END
        FROM onceward_jobs j WHERE j.event = e.id
    ) AS processing_state,
    (
        SELECT CASE WHEN COALESCE(sum(j.status = 'queued'), 0) = 0
            THEN max(COALESCE(max(j.finished_at), e.processed_at), COALESCE(e.processed_at, 0)) END
        FROM onceward_jobs j WHERE j.event = e.id
    ) AS processed_at,

-- name: events_page
-- A page of events, newest first. A filter by state starts from an index, except for `succeeded`,
-- which most events pass.
WITH leased AS (
    SELECT value AS id FROM onceward_leases l, json_each(l.jobs)
)
SELECT
    CAST(e.id AS text) AS id, s.name AS source, e.event_id, e.type AS event_type,
    e.reference AS related_reference, e.received_at,
    -- use event_state
    e.deliveries, e.conflicts,
    (
        SELECT CAST(t.original AS text) FROM onceward_duplicate_bodies t WHERE t.event = e.id
    ) AS duplicate_body_of,
    e.routed AS type_wanted
FROM onceward_events e
JOIN onceward_sources s ON s.id = e.source
WHERE TRUE
-- if after
    AND e.id < :after
-- end
-- if source
    AND s.name = :source
-- end
-- if handler
    AND EXISTS (
        SELECT 1 FROM onceward_jobs own JOIN onceward_handlers h ON h.id = own.handler
        WHERE own.event = e.id AND h.name = :handler
    )
-- end
-- if event_id
    AND e.event_id = :event_id
-- end
-- if reference
    AND e.reference = :reference
-- end
-- if duplicate_body
    AND e.id IN (SELECT event FROM onceward_duplicate_bodies)
-- end
-- if processing
    AND e.id IN (SELECT event FROM onceward_jobs WHERE status = 'queued' AND id IN (SELECT id FROM leased))
-- end
-- if pending
    AND e.id IN (SELECT event FROM onceward_jobs WHERE status = 'queued')
-- end
-- if failed
    AND e.id IN (SELECT event FROM onceward_jobs WHERE status = 'failed')
-- end
-- if ignored
    AND e.id IN (
        SELECT id FROM onceward_events WHERE NOT routed UNION ALL
        SELECT id FROM onceward_events WHERE final_state = 'ignored' UNION ALL
        SELECT event FROM onceward_jobs WHERE status IN ('ignored', 'cancelled')
    )
-- end
-- if review
    AND e.id IN (SELECT id FROM onceward_events WHERE final_state = 'review')
-- end
-- if status
    AND processing_state = :status
-- end
ORDER BY e.id DESC
LIMIT :limit

-- name: jobs_page
-- A page of jobs, newest first. A queued job under a lease is in progress.
WITH leased AS (
    SELECT value AS id FROM onceward_leases l, json_each(l.jobs)
),
in_flight AS (
    SELECT j.id, j.handler, j.ordering_key
    FROM onceward_leases l CROSS JOIN json_each(l.guarded) AS guarded
    CROSS JOIN onceward_jobs j ON j.id = guarded.value
    WHERE guarded.value IN (SELECT value FROM json_each(l.jobs))
    AND +j.status = 'queued' AND j.ordering_key IS NOT NULL
)
SELECT
    CAST(j.id AS text) AS id,
    CASE WHEN j.status = 'queued' AND j.id IN (SELECT id FROM leased) THEN 'in_progress'
         ELSE j.status END AS status,
    CAST(j.event AS text) AS event_ledger_id, s.name AS source, e.type AS event_type,
    e.event_id AS external_event_id, h.name AS handler, j.attempts, j.max_attempts, j.failure_type,
    j.last_error, j.available_at, j.created_at, j.finished_at, j.ordering_key, j.even_if_stale,
    CAST(j.effect AS text) AS effect_id,
    CASE WHEN j.status <> 'queued' OR j.id IN (SELECT id FROM leased) THEN NULL
         WHEN h.paused_at IS NOT NULL THEN 'paused_handler'
         WHEN s.paused_at IS NOT NULL THEN 'paused_source'
         WHEN j.parked AND j.ordering_key IS NOT NULL THEN 'key' END AS waiting,
    -- The bound is for a key with many failed jobs that do not hold it.
    CASE WHEN j.status = 'queued' AND j.parked THEN CAST(COALESCE(
        (
            SELECT b.id
            FROM (
                SELECT id, event, status, failure_type FROM onceward_jobs
                WHERE handler = j.handler AND ordering_key = j.ordering_key
                AND status IN ('queued', 'failed') AND event < j.event
                ORDER BY event LIMIT 100
            ) AS b
            WHERE b.status = 'queued' OR h.holds_key AND COALESCE(b.failure_type, '') <> 'held'
            ORDER BY b.event LIMIT 1
        ),
        (
            SELECT min(f.id) FROM in_flight f
            WHERE f.handler = j.handler AND f.ordering_key = j.ordering_key
        )
    ) AS text) END AS waits_for
FROM onceward_jobs j
JOIN onceward_events e ON e.id = j.event
JOIN onceward_sources s ON s.id = e.source
JOIN onceward_handlers h ON h.id = j.handler
WHERE TRUE
-- if id
    AND j.id = :id
-- end
-- if after
    AND j.id < :after
-- end
-- if source
    AND s.name = :source
-- end
-- if handler
    AND h.name = :handler
-- end
-- if event_id
    AND e.event_id = :event_id
-- end
-- if effect_id
    AND j.effect = :effect_id
-- end
-- if ordering_key
    AND j.ordering_key = :ordering_key AND j.handler IN (SELECT id FROM onceward_handlers)
-- end
-- if failure_type
    AND j.failure_type = :failure_type
-- end
-- if ended
    AND j.status = :status
-- end
-- if queued
    AND j.status = 'queued' AND j.id NOT IN (SELECT id FROM leased)
-- end
-- if in_progress
    AND j.status = 'queued' AND j.id IN (SELECT id FROM leased)
-- end
ORDER BY j.id DESC
LIMIT :limit

-- name: requeue
-- Queue a job that failed, was ignored or was cancelled again, with another `max_attempts` attempts, and
-- record the action. A job whose payload is gone stays as it is.
UPDATE onceward_jobs
SET status = 'queued', failure_type = NULL, effect = NULL, parked = 0, available_at = :now,
    giving_up = 0, finished_at = NULL, even_if_stale = :even_if_stale,
    even_if_stale_at = CASE WHEN :even_if_stale THEN :now END,
    -- As on PostgreSQL, where the column is an integer of 32 bits.
    max_attempts = min(2147483647, attempts + (
        SELECT h.max_attempts FROM onceward_handlers h WHERE h.id = onceward_jobs.handler
    ))
WHERE id = :job AND status IN ('failed', 'ignored', 'cancelled')
AND EXISTS (SELECT 1 FROM onceward_payloads p WHERE p.event = onceward_jobs.event);
INSERT INTO onceward_audit (at, actor, authenticated_as, action, reason, subject)
SELECT :now, :actor, :authenticated_as, :action, :reason, 'job:' || :job
WHERE changes() = 1
RETURNING :now AS available_at, CAST(id AS text) AS audit, at AS created_at

-- name: await_settlement
-- Nothing to wait for: settlements and operators' actions exclude each other.
SELECT 1 AS waited

-- name: unlease
-- Take a job from its lease: the worker can no longer settle it.
UPDATE onceward_leases
SET jobs = (SELECT json_group_array(value) FROM json_each(onceward_leases.jobs) WHERE value <> :job)
WHERE :job IN (SELECT value FROM json_each(onceward_leases.jobs))

-- name: wake_parked
-- Look at parked jobs in order of id and wake those that need not wait any longer. Return the last one
-- that is still parked, which is as good as the last one looked at, or NULL at the end.
WITH
page AS MATERIALIZED (
    SELECT id, event, handler, ordering_key FROM onceward_jobs
    WHERE status = 'queued' AND parked AND id > :after
    ORDER BY id
    LIMIT :limit
),
in_flight AS (
    SELECT j.id, j.handler, j.ordering_key
    FROM onceward_leases l CROSS JOIN json_each(l.guarded) AS guarded
    CROSS JOIN onceward_jobs j ON j.id = guarded.value
    WHERE guarded.value IN (SELECT value FROM json_each(l.jobs))
    AND +j.status = 'queued' AND j.ordering_key IS NOT NULL
),
heads AS (
    SELECT keys.handler, (
        SELECT j.event FROM onceward_jobs j
        WHERE j.handler = keys.handler AND j.ordering_key = keys.ordering_key
        AND j.status IN ('queued', 'failed')
        AND (j.status = 'queued' OR h.holds_key AND COALESCE(j.failure_type, '') <> 'held')
        ORDER BY j.event
        LIMIT 1
    ) AS event
    FROM (
        SELECT DISTINCT handler, ordering_key FROM page p
        WHERE ordering_key IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM in_flight f
            WHERE f.handler = p.handler AND f.ordering_key = p.ordering_key
        )
    ) AS keys
    JOIN onceward_handlers h ON h.id = keys.handler
)
UPDATE onceward_jobs SET parked = 0, available_at = :now
WHERE id IN (
    SELECT p.id
    FROM page p
    JOIN onceward_events e ON e.id = p.event
    JOIN onceward_sources s ON s.id = e.source
    WHERE s.paused_at IS NULL AND (
        p.ordering_key IS NULL OR (p.handler, p.event) IN (SELECT handler, event FROM heads)
    )
);
SELECT
    CASE WHEN changes() > 0 THEN COALESCE(max(id), :after) ELSE max(id) END AS last,
    changes() AS woken
FROM (
    SELECT id FROM onceward_jobs
    WHERE status = 'queued' AND parked AND id > :after
    ORDER BY id
    LIMIT :limit - changes()
)

-- name: job_status
-- The status of one job.
SELECT
    CASE WHEN status = 'queued' AND EXISTS (
        SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased WHERE leased.value = :job
    ) THEN 'in_progress' ELSE status END AS status
FROM onceward_jobs WHERE id = :job
