-- name: live_workers
-- The workers whose last heartbeat is recent. The clock may have been set back since.
SELECT name, handlers, health, started_at, seen_at FROM onceward_workers
WHERE seen_at > :now - CAST(:timeout_seconds * 1000000 AS INTEGER)
  AND seen_at < :now + CAST(:timeout_seconds * 1000000 AS INTEGER)
ORDER BY name

-- name: drop_stale_workers
-- Delete the rows of workers that died a while ago.
DELETE FROM onceward_workers
WHERE seen_at < :now - CAST(:stale_seconds * 1000000 AS INTEGER)
   OR seen_at > :now + CAST(:stale_seconds * 1000000 AS INTEGER)
