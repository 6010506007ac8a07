-- name: watermark
-- The newest version that a handler applied for a key.
SELECT version, event_id, source FROM onceward.watermarks
WHERE handler = (SELECT id FROM onceward.handlers WHERE name = :handler) AND key = :key
