-- name: count_rejections
-- Count rejected requests by source and cause.
INSERT INTO onceward.rejection_counts AS c (source, cause, count) VALUES (:source, :cause, :count)
ON CONFLICT (source, cause) DO UPDATE SET count = c.count + EXCLUDED.count
RETURNING count

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
-- if source
    AND s.name = :source
-- end
-- if status
    AND r.cause = :status
-- end
ORDER BY r.id DESC
LIMIT :limit

-- name: rejection_counts
-- The number of rejected requests since the database was created, and when the first and the last
-- came: `trim_rejections` keeps both.
SELECT s.name AS source, c.cause, c.count, r.first_at, r.last_at
FROM onceward.rejection_counts c
JOIN onceward.sources s ON s.id = c.source
LEFT JOIN (
    SELECT source, cause, min(received_at) AS first_at, max(last_at) AS last_at
    FROM onceward.rejections GROUP BY source, cause
) AS r ON r.source = c.source AND r.cause = c.cause
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
