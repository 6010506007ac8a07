-- Every operator has its schema, because the search_path is the handler's. Only `ignore` runs outside
-- the handler's transaction.

-- name: lock_watermark
-- The newest version that a handler applied for a key. Waits for a transaction that is changing it.
SELECT version, event_id, source, applied_at FROM onceward.watermarks
WHERE handler OPERATOR(pg_catalog.=) (
    SELECT id FROM onceward.handlers WHERE name OPERATOR(pg_catalog.=) :handler
)
AND key OPERATOR(pg_catalog.=) :key
FOR NO KEY UPDATE

-- name: add_watermark
-- Write the first version that a handler applies for a key. Waits for a transaction that does the same.
INSERT INTO onceward.watermarks (handler, key, version, event_id, source, applied_at)
SELECT id, :key, :version, :event_id, :source, pg_catalog.clock_timestamp()
FROM onceward.handlers WHERE name OPERATOR(pg_catalog.=) :handler
ON CONFLICT ON CONSTRAINT watermarks_once DO NOTHING
RETURNING 1 AS is_first

-- name: set_watermark
-- Replace the newest version that a handler applied for a key.
UPDATE onceward.watermarks
SET version = :version, event_id = :event_id, source = :source,
    applied_at = pg_catalog.clock_timestamp()
WHERE handler OPERATOR(pg_catalog.=) (
    SELECT id FROM onceward.handlers WHERE name OPERATOR(pg_catalog.=) :handler
)
AND key OPERATOR(pg_catalog.=) :key
RETURNING pg_catalog.texteq(version, :version) AS landed

-- name: ignore
-- Settle an attempt as ignored, if the lease is still held.
WITH fence AS (
    UPDATE onceward.leases SET jobs = array_remove(jobs, :job::bigint)
    WHERE token = :token AND :job::bigint = ANY(jobs)
    RETURNING 1
)
UPDATE onceward.jobs
SET status = 'ignored', attempts = attempts + 1, solo = false, finished_at = clock_timestamp(),
    failure_type = :failure_type, last_error = :error
WHERE id = :job AND status IS NOT DISTINCT FROM 'queued' AND EXISTS (SELECT 1 FROM fence)
RETURNING 1 AS landed
