-- name: count_rejections
-- Count rejected requests by source and cause.
INSERT INTO onceward.rejection_counts AS c (source, cause, count) VALUES (:source, :cause, :count)
ON CONFLICT (source, cause) DO UPDATE SET count = c.count + EXCLUDED.count
RETURNING count

-- name: trim_rejections
-- Delete all but the newest rejections of a source.
DELETE FROM onceward.rejections
WHERE source = :source AND id <= (
    SELECT id FROM onceward.rejections WHERE source = :source
    ORDER BY id DESC LIMIT 1 OFFSET :keep
)
RETURNING id

-- name: rejections_page
-- A page of rejected requests, newest first.
SELECT
    CAST(r.id AS text) AS id, s.name AS source, r.cause, r.reason AS "check", r.count, r.received_at,
    r.last_at, r.body IS NOT NULL AS kept, CAST(r.received_as AS text) AS received_as
FROM onceward.rejections r
JOIN onceward.sources s ON s.id = r.source
WHERE TRUE
-- if after
    AND r.id < :after
-- end
-- if status
    AND r.cause = :status
-- end
ORDER BY r.id DESC
LIMIT :limit

-- name: rejection_counts
-- The number of rejected requests since the database was created.
SELECT s.name AS source, c.cause, c.count
FROM onceward.rejection_counts c
JOIN onceward.sources s ON s.id = c.source
ORDER BY s.name, c.cause

-- name: load_rejection
-- One rejected request, with its content if that is stored.
SELECT
    s.name AS source, r.received_at, r.request, r.body, CAST(r.received_as AS text) AS received_as
FROM onceward.rejections r
JOIN onceward.sources s ON s.id = r.source
WHERE r.id = :id

-- name: receive_rejection
-- Store the event that a rejected request became, and delete the content of the request.
UPDATE onceward.rejections SET received_as = :event, request = NULL, body = NULL
WHERE id = :id AND received_as IS NULL AND body IS NOT NULL
RETURNING id
