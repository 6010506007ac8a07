-- name: add_source
-- Make a source known. Answers with its key.
INSERT INTO onceward.sources AS s (name) VALUES (:name)
ON CONFLICT (name) DO UPDATE SET name = s.name
RETURNING id

-- name: add_handler
-- Make a handler known. Answers with its key.
INSERT INTO onceward.handlers AS h (name, max_attempts) VALUES (:name, :max_attempts)
ON CONFLICT (name) DO UPDATE SET max_attempts = EXCLUDED.max_attempts
RETURNING id

-- name: add_route
-- Say which events a handler wants, or that it still does. Source 0 stands for any.
INSERT INTO onceward.routes (handler, source, type, is_prefix, seen_at)
VALUES (
    :handler, COALESCE((SELECT id FROM onceward.sources WHERE name = :source), 0), :type,
    :is_prefix, :now
)
ON CONFLICT (handler, source, type, is_prefix) DO UPDATE SET seen_at = EXCLUDED.seen_at

-- name: drop_routes
-- Forget which events a handler wants.
DELETE FROM onceward.routes
WHERE handler = (SELECT id FROM onceward.handlers WHERE name = :name)

-- name: routed_handlers
-- The handlers for which jobs are made.
SELECT name FROM onceward.handlers h
WHERE EXISTS (SELECT 1 FROM onceward.routes r WHERE r.handler = h.id)
ORDER BY name

-- name: tokens
-- The admin tokens that were made here, as hashes.
SELECT name, sha256 FROM onceward.tokens ORDER BY name

-- name: add_first_token
-- Keep the hash of the first admin token, unless there is one already.
INSERT INTO onceward.tokens (name, sha256, created_at)
SELECT :name, :sha256, :now WHERE NOT EXISTS (SELECT 1 FROM onceward.tokens)
ON CONFLICT (name) DO NOTHING
RETURNING 1 AS added
