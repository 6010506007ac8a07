-- name: drop_stale_routes
-- Delete the routes of a handler that no process has renewed for a while.
DELETE FROM onceward_routes
WHERE handler = :handler AND seen_at < :now - CAST(:stale_seconds * 1000000 AS INTEGER)
