-- Events whose handlers run within the request. COALESCE() keeps the planner from the partial indexes
-- of the status: each job is found by its key.

-- name: inline_event
-- The event of a delivery, with one row for each of its jobs.
SELECT
    e.id AS event, e.body_sha256, e.received_at, j.id AS job, h.name AS handler, j.status,
    j.failure_type, j.attempts, j.max_attempts
FROM onceward.events e
LEFT JOIN onceward.jobs j ON j.event = e.id
LEFT JOIN onceward.handlers h ON h.id = j.handler
WHERE e.source = :source AND e.event_id = :event_id
ORDER BY j.id

-- name: first_body
-- The first event with some content, for sources that hold duplicate bodies.
SELECT event FROM onceward.body_hashes WHERE source = :source AND body_sha256 = :covered_sha256

-- name: attach_effects
-- Give the effects of a handler the id of its job, which is recorded after they were marked.
UPDATE onceward.effects SET job = :job WHERE job = :provisional

-- name: settle_inline
-- Mark a job as done whose handler ran within the request. Last in the handler's transaction: a job of
-- an event that it recorded must still be queued, another one must still be failed within a request.
UPDATE onceward.jobs
SET status = 'done', attempts = attempts + 1, finished_at = :now, last_error = NULL,
    failure_type = NULL
WHERE id = :job
-- if new
    AND COALESCE(status, '') = 'queued'
-- end
-- if failed
    AND COALESCE(status, '') = 'failed' AND COALESCE(failure_type, '') = 'inline'
-- end
RETURNING status
