-- Events whose handlers run within the request. COALESCE() keeps the planner from the partial indexes
-- of the status: each job is found by its key.

-- name: inline_event
-- The event of a delivery, with one row for each of its jobs.
SELECT
    e.id AS event, e.body_sha256, e.received_at, e.final_state, j.id AS job, h.name AS handler, j.status,
    j.failure_type, j.attempts, j.max_attempts
FROM onceward.events e
LEFT JOIN onceward.jobs j ON j.event = e.id
LEFT JOIN onceward.handlers h ON h.id = j.handler
WHERE e.source = :source AND e.event_id = :event_id
ORDER BY j.id

-- name: first_body
-- The first event with some content, for sources that hold duplicate bodies.
SELECT event FROM onceward.body_hashes WHERE source = :source AND body_sha256 = :covered_sha256

-- name: wanting_handlers
-- The handlers with a route for events of a source and type, each with the filter of the route.
SELECT DISTINCT h.name AS handler, r.filter
FROM onceward.routes r JOIN onceward.handlers h ON h.id = r.handler
WHERE r.source IN (0, :source)
AND CASE WHEN r.is_prefix THEN substr(CAST(:type AS text), 1, length(r.type)) = r.type
         ELSE CAST(:type AS text) = r.type END

-- name: attach_effects
-- Give the effects of a handler the id of its job, which is recorded after they were marked.
UPDATE onceward.effects SET job = :job WHERE job = :provisional

-- name: settle_inline
-- End a job within the request: done if its handler ran, ignored if its filter rejected the event. Last
-- in the handler's transaction: a job of an event that it recorded must still be queued, another one must
-- still be failed within a request.
UPDATE onceward.jobs
SET status = :status, attempts = attempts + 1, finished_at = :now, last_error = :error,
    failure_type = :failure_type
WHERE id = :job
-- if new
    AND COALESCE(status, '') = 'queued'
-- end
-- if failed
    AND COALESCE(status, '') = 'failed' AND COALESCE(failure_type, '') = 'inline'
-- end
RETURNING status
