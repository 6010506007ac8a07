-- name: drop_stale_routes
-- Forget what a handler wanted in a version that no process has run for a while.
DELETE FROM onceward.routes
WHERE handler = :handler AND seen_at < clock_timestamp() - :stale_seconds * interval '1 second'
