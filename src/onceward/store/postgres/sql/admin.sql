-- fragment: event_state
-- The state of an event e, from its jobs and from those that were purged; and when the last one ended,
-- unless one is not over. The statement has the ids of the jobs under a lease as `leased`.
CROSS JOIN LATERAL (
    SELECT
        CASE
            WHEN bool_or(status = 'queued' AND id IN (SELECT id FROM leased)) THEN 'processing'
            WHEN bool_or(status = 'queued') THEN 'pending'
            WHEN bool_or(status = 'failed') THEN 'failed'
            WHEN bool_or(status = 'done') OR e.final_state = 'succeeded' THEN 'succeeded'
            WHEN count(*) = 0 AND e.final_state = 'review' THEN 'review'
            ELSE 'ignored'
        END AS processing_state,
        CASE WHEN bool_or(status = 'queued') THEN NULL
            ELSE GREATEST(max(finished_at), e.processed_at) END AS processed_at
    FROM onceward.jobs WHERE event = e.id
) AS j

-- name: events_page
-- A page of events, newest first. A filter by state starts from an index, except for `succeeded`,
-- which most events pass.
WITH leased AS (
    SELECT unnest(jobs) AS id FROM onceward.leases
)
SELECT
    CAST(e.id AS text) AS id, s.name AS source, e.event_id, e.type AS event_type,
    e.reference AS related_reference, e.received_at,
    j.processed_at, j.processing_state, e.deliveries, e.conflicts,
    (
        SELECT CAST(t.original AS text) FROM onceward.duplicate_bodies t WHERE t.event = e.id
    ) AS duplicate_body_of,
    e.routed AS type_wanted
FROM onceward.events e
JOIN onceward.sources s ON s.id = e.source
-- use event_state
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
    AND j.processing_state = :status
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
        SELECT id FROM onceward.events WHERE final_state = 'ignored' UNION ALL
        SELECT event FROM onceward.jobs WHERE status IN ('ignored', 'cancelled')
    )
-- end
-- if review
    AND e.id IN (SELECT id FROM onceward.events WHERE final_state = 'review')
-- end
ORDER BY e.id DESC
LIMIT :limit

-- name: jobs_page
-- A page of jobs, newest first. A queued job under a lease is in progress.
WITH leased AS (
    SELECT unnest(jobs) AS id FROM onceward.leases
),
in_flight AS MATERIALIZED (
    SELECT j.id, j.handler, j.ordering_key
    FROM onceward.leases l
    CROSS JOIN LATERAL unnest(l.guarded) AS guarded (id)
    CROSS JOIN LATERAL (SELECT * FROM onceward.jobs WHERE id = guarded.id LIMIT 1) AS j
    WHERE guarded.id = ANY(l.jobs) AND j.status = 'queued' AND j.ordering_key IS NOT NULL
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
                SELECT id, event, status, failure_type FROM onceward.jobs
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
-- if effect_id
    AND j.effect = :effect_id
-- end
-- if ordering_key
    AND j.ordering_key = :ordering_key AND j.handler IN (SELECT id FROM onceward.handlers)
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
WITH
requeued AS (
    UPDATE onceward.jobs j
    SET status = 'queued', failure_type = NULL, parked = false, effect = NULL,
        giving_up = false, even_if_stale = :even_if_stale,
        even_if_stale_at = CASE WHEN :even_if_stale THEN clock_timestamp() END,
        -- An earlier version allowed any integer as the number of attempts.
        max_attempts = LEAST(j.attempts::bigint + h.max_attempts, 2147483647),
        available_at = clock_timestamp(), finished_at = NULL
    FROM onceward.handlers h
    WHERE h.id = j.handler AND j.id = :job AND j.status IN ('failed', 'ignored', 'cancelled')
    AND EXISTS (
        SELECT 1 FROM onceward.payloads p
        WHERE p.event = j.event AND p.received_at = j.received_at
    )
    RETURNING j.id, j.available_at
),
entry AS (
    INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
    SELECT clock_timestamp(), :actor, :authenticated_as, :action, :reason, 'job:' || id
    FROM requeued
    RETURNING id, at
)
SELECT requeued.available_at, CAST(entry.id AS text) AS audit, entry.at AS created_at
FROM requeued, entry

-- name: await_settlement
-- Wait until a settlement of a job in progress has ended.
SELECT 1 AS waited FROM onceward.jobs WHERE id = :job FOR NO KEY UPDATE

-- name: unlease
-- Take a job from its lease: the worker can no longer settle it.
UPDATE onceward.leases SET jobs = array_remove(jobs, :job::bigint) WHERE :job::bigint = ANY(jobs)

-- name: wake_parked
-- Look at parked jobs in order of id and wake those that need not wait any longer. Return the last one
-- looked at, or NULL at the end. LIMIT 1 and = ANY() force lookups by key, as in load_jobs.
WITH
page AS MATERIALIZED (
    SELECT id, event, handler, ordering_key FROM onceward.jobs
    WHERE status = 'queued' AND parked AND id > :after
    ORDER BY id
    LIMIT :limit
),
in_flight AS MATERIALIZED (
    SELECT j.id, j.handler, j.ordering_key
    FROM onceward.leases l
    CROSS JOIN LATERAL unnest(l.guarded) AS guarded (id)
    CROSS JOIN LATERAL (SELECT * FROM onceward.jobs WHERE id = guarded.id LIMIT 1) AS j
    WHERE guarded.id = ANY(l.jobs) AND j.status = 'queued' AND j.ordering_key IS NOT NULL
),
heads AS MATERIALIZED (
    SELECT keys.handler, head.event
    FROM (
        SELECT DISTINCT handler, ordering_key FROM page p
        WHERE ordering_key IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM in_flight f
            WHERE f.handler = p.handler AND f.ordering_key = p.ordering_key
        )
    ) AS keys
    JOIN onceward.handlers h ON h.id = keys.handler
    CROSS JOIN LATERAL (
        SELECT j.event FROM onceward.jobs j
        WHERE j.handler = keys.handler AND j.ordering_key = keys.ordering_key
        AND j.status IN ('queued', 'failed')
        AND (j.status = 'queued' OR h.holds_key AND COALESCE(j.failure_type, '') <> 'held')
        ORDER BY j.event
        LIMIT 1
    ) AS head
),
ready AS MATERIALIZED (
    SELECT p.id
    FROM page p
    CROSS JOIN LATERAL (SELECT source FROM onceward.events WHERE id = p.event LIMIT 1) AS e
    JOIN onceward.sources s ON s.id = e.source
    WHERE s.paused_at IS NULL AND (
        p.ordering_key IS NULL OR (p.handler, p.event) IN (SELECT handler, event FROM heads)
    )
),
woken AS (
    UPDATE onceward.jobs SET parked = false, available_at = clock_timestamp()
    WHERE id = ANY(ARRAY(SELECT id FROM ready)) AND parked
    RETURNING 1
)
SELECT (SELECT max(id) FROM page) AS last, (SELECT count(*) FROM woken) AS woken

-- name: job_status
-- The status of one job.
SELECT
    CASE WHEN status = 'queued' AND EXISTS (
        SELECT 1 FROM onceward.leases l WHERE :job = ANY(l.jobs)
    ) THEN 'in_progress' ELSE status END AS status
FROM onceward.jobs WHERE id = :job
