-- name: registered
-- The routes, handlers and sources of all processes, and the time of the ledger. One statement, because
-- it runs on each new connection before anything is recorded. A route without a source is for any.
SELECT
    'route' AS kind, r.handler AS id, h.name, s.name AS source, r.type, r.is_prefix, r.seen_at,
    NULL AS max_attempts, NULL AS ordering_key, NULL AS holds_key, NULL AS concurrency,
    NULL AS rate_interval_seconds, NULL AS has_on_failed, r.filter
FROM onceward.routes r
JOIN onceward.handlers h ON h.id = r.handler
LEFT JOIN onceward.sources s ON s.id = r.source
UNION ALL
SELECT
    'handler', id, name, NULL, NULL, NULL, NULL, max_attempts, ordering_key, holds_key, concurrency,
    rate_interval_seconds, has_on_failed, NULL
FROM onceward.handlers
UNION ALL
SELECT
    'source', id, name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM onceward.sources
UNION ALL
SELECT 'clock', 0, '', NULL, NULL, NULL, :now, NULL, NULL, NULL, NULL, NULL, NULL, NULL

-- name: payload_routes
-- The routes that have a filter, or whose jobs have an ordering key: then with the path of the key. A
-- route without a source is for any.
SELECT
    h.ordering_key AS path, r.filter,
    CASE WHEN r.is_prefix THEN r.type || '*' ELSE r.type END AS pattern, s.name AS source
FROM onceward.handlers h
JOIN onceward.routes r ON r.handler = h.id
LEFT JOIN onceward.sources s ON s.id = r.source
WHERE h.ordering_key IS NOT NULL OR r.filter <> ''

-- name: routes_of_handlers
-- The routes of all handlers, in a stable order. A route without a source is for any.
SELECT
    h.name AS handler, CASE WHEN r.is_prefix THEN r.type || '*' ELSE r.type END AS pattern,
    s.name AS source, r.filter
FROM onceward.routes r
JOIN onceward.handlers h ON h.id = r.handler
LEFT JOIN onceward.sources s ON s.id = r.source
ORDER BY h.id, r.type, r.is_prefix, r.source, r.filter

-- name: add_source
-- Register a source and return its id. Only for a new name: every call uses up an id.
INSERT INTO onceward.sources AS s (name) VALUES (:name)
ON CONFLICT (name) DO UPDATE SET name = s.name
RETURNING id

-- name: add_handler
-- Register a handler and return its id. Only for a new name: every call uses up an id.
INSERT INTO onceward.handlers
    (name, max_attempts, ordering_key, holds_key, concurrency, rate_interval_seconds, has_on_failed)
VALUES (
    :name, :max_attempts, :ordering_key, :holds_key, :concurrency, :rate_interval_seconds,
    :has_on_failed
)
ON CONFLICT (name) DO UPDATE
SET max_attempts = EXCLUDED.max_attempts, ordering_key = EXCLUDED.ordering_key,
    holds_key = EXCLUDED.holds_key, concurrency = EXCLUDED.concurrency,
    rate_interval_seconds = EXCLUDED.rate_interval_seconds, has_on_failed = EXCLUDED.has_on_failed
RETURNING id

-- name: set_handler_options
-- Change the options of a handler: the number of attempts and the keys are those of new jobs.
UPDATE onceward.handlers
SET max_attempts = :max_attempts, ordering_key = :ordering_key, holds_key = :holds_key,
    concurrency = :concurrency, rate_interval_seconds = :rate_interval_seconds,
    has_on_failed = :has_on_failed
WHERE name = :name

-- name: add_route
-- Add a route of a handler, or renew it. Source 0 stands for any source.
INSERT INTO onceward.routes (handler, source, type, is_prefix, filter, seen_at)
VALUES (:handler, :source, :type, :is_prefix, :filter, :now)
ON CONFLICT (handler, source, type, is_prefix, filter) DO UPDATE SET seen_at = EXCLUDED.seen_at

-- name: drop_routes
-- Delete all routes of a handler.
DELETE FROM onceward.routes
WHERE handler = (SELECT id FROM onceward.handlers WHERE name = :name)

-- name: unrouted_types
-- The sources and types of the newest events that matched no route, oldest first, each with the id of
-- its newest event. The inner statement bounds the rows that are read.
SELECT s.name AS source, e.type, max(e.id) AS newest
FROM (
    SELECT id, source, type FROM onceward.events
    WHERE NOT routed AND id > :after
    ORDER BY id DESC
    LIMIT :limit
) AS e
JOIN onceward.sources s ON s.id = e.source
GROUP BY s.name, e.type
ORDER BY newest

-- name: routed_sources
-- The sources of those among the newest events that matched a route.
SELECT DISTINCT s.name
FROM (SELECT source, routed FROM onceward.events ORDER BY id DESC LIMIT :limit) AS e
JOIN onceward.sources s ON s.id = e.source
WHERE e.routed

-- name: tokens
-- The hashes of the admin tokens.
SELECT name, sha256 FROM onceward.tokens ORDER BY name

-- name: add_first_token
-- Store the hash of the first admin token, unless there is one.
INSERT INTO onceward.tokens (name, sha256, created_at)
SELECT :name, :sha256, :now WHERE NOT EXISTS (SELECT 1 FROM onceward.tokens)
ON CONFLICT (name) DO NOTHING
RETURNING 1 AS added
