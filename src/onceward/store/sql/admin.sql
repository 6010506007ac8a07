-- Filters by event id go through `sources`, so that they can use the index on (source, event_id).

-- name: effects_page
-- A page of effects, newest first.
SELECT
    CAST(f.id AS text) AS id, idempotency_key, CAST(job AS text) AS job_id, reference, status,
    function, call_no, deadline_at, error_message, created_at, updated_at
FROM onceward.effects f
WHERE TRUE
-- if after
    AND f.id < :after
-- end
-- if status
    AND status = :status
-- end
-- if reference
    AND reference = :reference
-- end
-- if source
    AND EXISTS (
        SELECT 1 FROM onceward.jobs j
        JOIN onceward.events e ON e.id = j.event
        JOIN onceward.sources s ON s.id = e.source
        WHERE j.id = f.job AND s.name = :source
    )
-- end
-- if handler
    AND EXISTS (
        SELECT 1 FROM onceward.jobs j JOIN onceward.handlers h ON h.id = j.handler
        WHERE j.id = f.job AND h.name = :handler
    )
-- end
-- if event_id
    AND job IN (
        SELECT j.id FROM onceward.jobs j
        JOIN onceward.events e ON e.id = j.event
        JOIN onceward.sources s ON s.id = e.source
        WHERE e.event_id = :event_id
    )
-- end
ORDER BY f.id DESC
LIMIT :limit

-- name: failed_attempts
-- The newest failed attempts of a job, newest first.
SELECT number, worker, started_at, ended_at, error, traceback
FROM onceward.attempts
WHERE job = :job
ORDER BY number DESC
LIMIT :limit

-- name: deliveries_page
-- A page of deliveries, newest first: the first delivery of each event, and its redeliveries.
SELECT
    CAST(l.id AS text) AS id, CAST(l.event AS text) AS event_ledger_id, s.name AS source,
    e.event_id, l.outcome, l.received_at, CAST(l.accepted_as AS text) AS accepted_as
FROM (
    SELECT * FROM (
        SELECT id, id AS event, received_at, 'recorded' AS outcome, CAST(NULL AS bigint) AS accepted_as
        FROM onceward.events
        WHERE TRUE
        -- if after
            AND id < :after
        -- end
        -- if status
            AND 'recorded' = :status
        -- end
        -- if source
            AND source = (SELECT id FROM onceward.sources WHERE name = :source)
        -- end
        -- if event_id
            AND event_id = :event_id AND source IN (SELECT id FROM onceward.sources)
        -- end
        ORDER BY id DESC LIMIT :limit
    ) AS first_deliveries
    UNION ALL
    SELECT * FROM (
        SELECT id, event, received_at, outcome, accepted_as FROM onceward.deliveries d
        WHERE TRUE
        -- if after
            AND id < :after
        -- end
        -- if status
            AND outcome = :status
        -- end
        -- if source
            AND EXISTS (
                SELECT 1 FROM onceward.events e JOIN onceward.sources s ON s.id = e.source
                WHERE e.id = d.event AND s.name = :source
            )
        -- end
        -- if event_id
            AND event IN (
                SELECT id FROM onceward.events WHERE event_id = :event_id
                AND source IN (SELECT id FROM onceward.sources)
            )
        -- end
        ORDER BY id DESC LIMIT :limit
    ) AS redeliveries
) AS l
JOIN onceward.events e ON e.id = l.event
JOIN onceward.sources s ON s.id = e.source
ORDER BY l.id DESC
LIMIT :limit

-- name: audit_page
-- A page of audit entries, newest first.
SELECT
    CAST(a.id AS text) AS id,
    CASE WHEN subject LIKE 'job:%' THEN substr(subject, 5) END AS job_id, subject,
    action, actor, authenticated_as, reason, at AS created_at
FROM onceward.audit a
WHERE TRUE
-- if after
    AND a.id < :after
-- end
-- if event_id
    AND subject IN (
        SELECT 'job:' || j.id FROM onceward.jobs j
        JOIN onceward.events e ON e.id = j.event
        JOIN onceward.sources s ON s.id = e.source
        WHERE e.event_id = :event_id
        UNION ALL
        SELECT 'event:' || e.id FROM onceward.events e
        JOIN onceward.sources s ON s.id = e.source
        WHERE e.event_id = :event_id
    )
-- end
-- if subject
    AND subject = :subject
-- end
ORDER BY a.id DESC
LIMIT :limit

-- name: add_audit_entry
-- Record an operator's action.
INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
VALUES (:now, :actor, :authenticated_as, :action, :reason, :subject)
RETURNING CAST(id AS text) AS id, at AS created_at

-- name: handlers_page
-- A page of handlers, newest first.
SELECT
    CAST(h.id AS text) AS id, name, paused_at, ordering_key, holds_key, concurrency,
    rate_interval_seconds, max_attempts
FROM onceward.handlers h
WHERE TRUE
-- if after
    AND h.id < :after
-- end
ORDER BY h.id DESC
LIMIT :limit

-- name: sources_page
-- A page of sources, newest first.
SELECT CAST(s.id AS text) AS id, name, paused_at
FROM onceward.sources s
WHERE TRUE
-- if after
    AND s.id < :after
-- end
ORDER BY s.id DESC
LIMIT :limit

-- name: pause_handler
-- Pause a handler, unless it is paused.
UPDATE onceward.handlers SET paused_at = :now WHERE name = :name AND paused_at IS NULL
RETURNING paused_at

-- name: pause_source
-- Pause a source, unless it is paused.
UPDATE onceward.sources SET paused_at = :now WHERE name = :name AND paused_at IS NULL
RETURNING paused_at

-- name: resume_handler
-- Resume a handler, if it is paused.
UPDATE onceward.handlers SET paused_at = NULL WHERE name = :name AND paused_at IS NOT NULL
RETURNING paused_at

-- name: resume_source
-- Resume a source, if it is paused.
UPDATE onceward.sources SET paused_at = NULL WHERE name = :name AND paused_at IS NOT NULL
RETURNING paused_at

-- name: handler_pause
-- Whether a handler exists, and since when it is paused.
SELECT paused_at FROM onceward.handlers WHERE name = :name

-- name: source_pause
-- Whether a source exists, and since when it is paused.
SELECT paused_at FROM onceward.sources WHERE name = :name

-- name: pauses
-- The handlers and sources that are paused.
SELECT 'handler' AS kind, name, paused_at FROM onceward.handlers WHERE paused_at IS NOT NULL
UNION ALL
SELECT 'source' AS kind, name, paused_at FROM onceward.sources WHERE paused_at IS NOT NULL
ORDER BY kind, name

-- name: cancel
-- Cancel a job that is neither done nor cancelled. `last_error` is kept.
UPDATE onceward.jobs
SET status = 'cancelled', finished_at = :now, parked = false, failure_type = NULL
WHERE id = :job AND status IN ('queued', 'failed', 'ignored')
RETURNING handler, ordering_key, finished_at

-- name: wake_key
-- Wake the first unfinished job of a handler and key, if it is parked. A failed job is unfinished if
-- the handler holds the key; a job that was held as a duplicate body has not failed.
UPDATE onceward.jobs SET parked = false, available_at = :now
WHERE status = 'queued' AND parked AND id = (
    SELECT j.id
    FROM onceward.jobs j JOIN onceward.handlers h ON h.id = j.handler
    WHERE j.handler = :handler AND j.ordering_key = :ordering_key AND j.status IN ('queued', 'failed')
    AND (j.status = 'queued' OR h.holds_key AND COALESCE(j.failure_type, '') <> 'held')
    ORDER BY j.event
    LIMIT 1
)
RETURNING id

-- name: missing_payload
-- The event of a job that could be requeued if its payload were not gone.
SELECT e.id, e.received_at, s.name AS source, e.event_id
FROM onceward.jobs j
JOIN onceward.events e ON e.id = j.event
JOIN onceward.sources s ON s.id = e.source
WHERE j.id = :job AND j.status IN ('failed', 'ignored', 'cancelled') AND NOT EXISTS (
    SELECT 1 FROM onceward.payloads p WHERE p.event = j.event AND p.received_at = j.received_at
)

-- name: waiting_behind
-- The number of queued jobs of the same handler and key that come after a job, up to a limit.
SELECT count(*) AS jobs
FROM (
    SELECT 1 AS one
    FROM onceward.jobs j
    JOIN onceward.jobs later ON later.handler = j.handler AND later.ordering_key = j.ordering_key
    WHERE j.id = :job AND later.status = 'queued' AND later.event > j.event
    LIMIT :limit
) AS later

-- name: newest_migration
-- The number of the last migration of the ledger.
SELECT max(number) AS number FROM onceward.migrations
