-- name: renew_worker
-- Store that a worker is alive.
INSERT INTO onceward.workers AS w (name, handlers, started_at, seen_at)
VALUES (:name, :handlers, :now, :now)
ON CONFLICT (name) DO UPDATE SET
    handlers = EXCLUDED.handlers,
    started_at = CASE WHEN :is_start THEN EXCLUDED.started_at ELSE w.started_at END,
    seen_at = EXCLUDED.seen_at

-- name: remove_worker
-- Delete the row of a worker that stopped.
DELETE FROM onceward.workers WHERE name = :name
