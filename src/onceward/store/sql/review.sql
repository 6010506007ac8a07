-- name: event_to_route
-- An event with its payload, if that is stored, and with the state that outlived its jobs.
SELECT s.name AS source, e.event_id, e.received_at, e.final_state, p.headers, p.body
FROM onceward.events e
JOIN onceward.sources s ON s.id = e.source
LEFT JOIN onceward.payloads p ON p.event = e.id AND p.received_at = e.received_at
WHERE e.id = :event

-- name: handler_to_route
-- A handler by its name, with the path of its ordering key.
SELECT id, ordering_key FROM onceward.handlers WHERE name = :name

-- name: job_of_handler
-- The job of an event for a handler.
SELECT CAST(id AS text) AS id, status FROM onceward.jobs WHERE event = :event AND handler = :handler

-- name: add_routed_job
-- Create the job of a recorded event for a handler that an operator chose.
INSERT INTO onceward.jobs
    (event, received_at, available_at, created_at, handler, max_attempts, ordering_key)
SELECT e.id, e.received_at, :now, :now, h.id, h.max_attempts, CAST(:ordering_key AS text)
FROM onceward.events e CROSS JOIN onceward.handlers h
WHERE e.id = :event AND h.id = :handler
RETURNING CAST(id AS text) AS id, available_at

-- name: leave_review
-- End the review of an event that gets a job.
UPDATE onceward.events SET final_state = NULL WHERE id = :event AND final_state = 'review'

-- name: dismiss
-- End the review of an event without a job.
UPDATE onceward.events SET final_state = 'ignored', processed_at = :now
WHERE id = :event AND final_state = 'review'
RETURNING processed_at

-- name: events_in_review
-- The number of events that wait for review, up to a limit.
SELECT count(*) AS events
FROM (SELECT 1 AS one FROM onceward.events WHERE final_state = 'review' LIMIT :limit) AS waiting
