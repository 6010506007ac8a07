-- name: watermark
-- The newest version that a handler applied for a key.
SELECT version, event_id, source, applied_at FROM onceward.watermarks
WHERE handler = (SELECT id FROM onceward.handlers WHERE name = :handler) AND key = :key

-- name: watermarks_page
-- A page of watermarks, newest first.
SELECT
    CAST(w.id AS text) AS id, h.name AS handler, w.key, w.version, w.event_id, w.source, w.applied_at
FROM onceward.watermarks w
JOIN onceward.handlers h ON h.id = w.handler
WHERE TRUE
-- if after
    AND w.id < :after
-- end
-- if handler
    AND w.handler = (SELECT id FROM onceward.handlers WHERE name = :handler)
-- end
-- if key
    AND w.key = :key
-- end
-- if event_id
    AND w.event_id = :event_id
-- end
ORDER BY w.id DESC
LIMIT :limit

-- name: forget_watermark
-- Delete the newest version that a handler applied for a key. Waits for a transaction that sets it.
DELETE FROM onceward.watermarks
WHERE handler = (SELECT id FROM onceward.handlers WHERE name = :handler) AND key = :key
RETURNING CAST(id AS text) AS id, key, version, event_id, source, applied_at
