-- name: events_page
-- A page of events, newest first. A filter by state starts from an index, except for `succeeded`,
-- which most events pass.
WITH leased AS (
    SELECT unnest(jobs) AS id FROM onceward.leases
)
SELECT
    CAST(e.id AS text) AS id, s.name AS source, e.event_id, e.type AS event_type,
    e.reference AS related_reference, e.received_at,
    CASE WHEN j.state NOT IN ('pending', 'processing') THEN j.finished_at END AS processed_at,
    j.state AS processing_state, e.deliveries, e.conflicts,
    (
        SELECT CAST(t.original AS text) FROM onceward.duplicate_bodies t WHERE t.event = e.id
    ) AS duplicate_body_of
FROM onceward.events e
JOIN onceward.sources s ON s.id = e.source
CROSS JOIN LATERAL (
    SELECT
        CASE
            WHEN bool_or(status = 'queued' AND id IN (SELECT id FROM leased)) THEN 'processing'
            WHEN bool_or(status = 'queued') THEN 'pending'
            WHEN bool_or(status = 'failed') THEN 'failed'
            WHEN bool_or(status = 'done') THEN 'succeeded'
            ELSE 'ignored'
        END AS state,
        max(finished_at) AS finished_at
    FROM onceward.jobs WHERE event = e.id
) AS j
WHERE TRUE
-- if after
    AND e.id < :after
-- end
-- if source
    AND s.name = :source
-- end
-- if handler
    AND EXISTS (
        SELECT 1 FROM onceward.jobs own JOIN onceward.handlers h ON h.id = own.handler
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
    AND e.id IN (SELECT event FROM onceward.duplicate_bodies)
-- end
-- if status
    AND j.state = :status
-- end
-- if processing
    AND e.id IN (SELECT event FROM onceward.jobs WHERE status = 'queued' AND id IN (SELECT id FROM leased))
-- end
-- if pending
    AND e.id IN (SELECT event FROM onceward.jobs WHERE status = 'queued')
-- end
-- if failed
    AND e.id IN (SELECT event FROM onceward.jobs WHERE status = 'failed')
-- end
-- if ignored
    AND e.id IN (
        SELECT id FROM onceward.events WHERE NOT routed UNION ALL
        SELECT event FROM onceward.jobs WHERE status IN ('ignored', 'cancelled')
    )
-- end
ORDER BY e.id DESC
LIMIT :limit

-- name: jobs_page
-- A page of jobs, newest first. A queued job under a lease is in progress.
WITH leased AS (
    SELECT unnest(jobs) AS id FROM onceward.leases
)
SELECT
    CAST(j.id AS text) AS id,
    CASE WHEN j.status = 'queued' AND j.id IN (SELECT id FROM leased) THEN 'in_progress'
         ELSE j.status END AS status,
    CAST(j.event AS text) AS event_ledger_id, s.name AS source, e.type AS event_type,
    e.event_id AS external_event_id, h.name AS handler, j.attempts, j.max_attempts, j.failure_type,
    j.last_error, j.available_at, j.created_at, j.finished_at
FROM onceward.jobs j
JOIN onceward.events e ON e.id = j.event
JOIN onceward.sources s ON s.id = e.source
JOIN onceward.handlers h ON h.id = j.handler
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
-- Queue a failed or cancelled job again with another `max_attempts` attempts, and record the action.
WITH
requeued AS (
    UPDATE onceward.jobs j
    SET status = 'queued', failure_type = NULL,
        -- An earlier version allowed any integer as the number of attempts.
        max_attempts = LEAST(j.attempts::bigint + h.max_attempts, 2147483647),
        available_at = clock_timestamp(), finished_at = NULL
    FROM onceward.handlers h
    WHERE h.id = j.handler AND j.id = :job AND j.status IN ('failed', 'cancelled')
    RETURNING j.id, j.available_at
),
entry AS (
    INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
    SELECT clock_timestamp(), :actor, :authenticated_as, 'manual_requeue', :reason, 'job:' || id
    FROM requeued
    RETURNING id, at
)
SELECT requeued.available_at, CAST(entry.id AS text) AS audit, entry.at AS created_at
FROM requeued, entry

-- name: job_status
-- The status of one job.
SELECT
    CASE WHEN status = 'queued' AND EXISTS (
        SELECT 1 FROM onceward.leases l WHERE :job = ANY(l.jobs)
    ) THEN 'in_progress' ELSE status END AS status
FROM onceward.jobs WHERE id = :job
