-- name: drop_stale_routes
-- Delete the routes of a handler that no process has renewed for a while.
DELETE FROM onceward.routes
WHERE handler = :handler AND seen_at < clock_timestamp() - :stale_seconds * interval '1 second'
