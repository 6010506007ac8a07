-- Filters by event id go through `sources`, so that they can use the index on (source, event_id).

-- name: effects_page
-- A page of effects, newest first.
SELECT
    CAST(f.id AS text) AS id, idempotency_key, CAST(job AS text) AS job_id, reference, status,
    error_message, created_at, updated_at
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
    )
-- end
ORDER BY a.id DESC
LIMIT :limit

-- name: add_audit_entry
-- Record an operator's action.
INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
VALUES (:now, :actor, :authenticated_as, :action, :reason, :subject)
RETURNING CAST(id AS text) AS id, at AS created_at

-- name: ping
-- Read the ledger, to check that it can be read.
SELECT 1 AS ready FROM onceward.sources LIMIT 1
