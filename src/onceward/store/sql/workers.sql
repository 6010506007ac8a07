-- name: renew_worker
-- Store that a worker is alive, and how well.
INSERT INTO onceward.workers AS w (name, handlers, health, started_at, seen_at)
VALUES (:name, :handlers, :health, :now, :now)
ON CONFLICT (name) DO UPDATE SET
    handlers = EXCLUDED.handlers,
    health = EXCLUDED.health,
    started_at = CASE WHEN :is_start THEN EXCLUDED.started_at ELSE w.started_at END,
    seen_at = EXCLUDED.seen_at

-- name: remove_worker
-- Delete the row of a worker that stopped.
DELETE FROM onceward.workers WHERE name = :name

-- name: queued_handler
-- Whether a handler has a queued job. The two kinds have an index each.
SELECT 1 AS is_queued FROM onceward.handlers h
WHERE h.name = :name AND (
    EXISTS (
        SELECT 1 FROM onceward.jobs j
        WHERE j.handler = h.id AND j.status = 'queued' AND NOT j.parked
    )
    OR EXISTS (
        SELECT 1 FROM onceward.jobs j
        WHERE j.handler = h.id AND j.status = 'queued' AND j.parked
    )
)
