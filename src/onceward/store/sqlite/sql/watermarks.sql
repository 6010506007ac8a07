-- name: lock_watermark
-- The newest version that a handler applied for a key. No other transaction can write meanwhile.
SELECT version, event_id, source, applied_at FROM onceward_watermarks
WHERE handler = (SELECT id FROM onceward_handlers WHERE name = :handler) AND key = :key

-- name: add_watermark
-- Write the first version that a handler applies for a key.
INSERT INTO onceward_watermarks (handler, key, version, event_id, source, applied_at)
SELECT id, :key, :version, :event_id, :source, :now FROM onceward_handlers WHERE name = :handler
ON CONFLICT (handler, key) DO NOTHING
RETURNING 1 AS is_first

-- name: set_watermark
-- Replace the newest version that a handler applied for a key.
UPDATE onceward_watermarks
SET version = :version, event_id = :event_id, source = :source,
    applied_at = :now
WHERE handler = (SELECT id FROM onceward_handlers WHERE name = :handler) AND key = :key
RETURNING version = :version AS landed

-- name: ignore
-- Settle an attempt as ignored, if the lease is still held.
UPDATE onceward_jobs
SET status = 'ignored', attempts = attempts + 1, solo = 0, finished_at = :now,
    failure_type = :failure_type, last_error = :error
WHERE id = :job AND status = 'queued' AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
);
UPDATE onceward_leases
SET jobs = (SELECT json_group_array(value) FROM json_each(onceward_leases.jobs) WHERE value <> :job)
WHERE changes() = 1 AND token = :token
RETURNING 1 AS landed
