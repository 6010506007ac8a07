-- name: live_workers
-- The workers whose last heartbeat is recent. The clock may have been set back since.
SELECT name, handlers, health, started_at, seen_at FROM onceward.workers
WHERE seen_at > clock_timestamp() - :timeout_seconds * interval '1 second'
  AND seen_at < clock_timestamp() + :timeout_seconds * interval '1 second'
ORDER BY name

-- name: drop_stale_workers
-- Delete the rows of workers that died a while ago.
DELETE FROM onceward.workers
WHERE seen_at < clock_timestamp() - :stale_seconds * interval '1 second'
   OR seen_at > clock_timestamp() + :stale_seconds * interval '1 second'
