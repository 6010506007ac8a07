-- name: drop_stale_routes
-- Forget what a handler wanted in a version that no process has run for a while.
DELETE FROM onceward_routes
WHERE handler = :handler AND seen_at < :now - CAST(:stale_seconds * 1000000 AS INTEGER)
