-- name: add_rejection
-- Store a rejected request, or several that are alike.
INSERT INTO onceward_rejections (received_at, last_at, source, count, cause, reason, request, body)
VALUES (
    CAST(:received_at * 1000000 AS INTEGER), CAST(:last_at * 1000000 AS INTEGER), :source, :count,
    :cause, :reason, :request, :body
)
RETURNING id

-- name: trim_rejections
-- Delete rejections of a source beyond `keep`, beside the first and the last of each cause. Every
-- hour of a cause has an equal share, and so have stored requests beside mere counts: a flood
-- displaces its own rows, not those of other hours. typeof(body) does not read the body.
WITH ranked AS (
    SELECT
        id,
        row_number() OVER (PARTITION BY cause ORDER BY id) AS from_first,
        row_number() OVER (PARTITION BY cause ORDER BY id DESC) AS from_last,
        row_number() OVER (
            PARTITION BY cause, typeof(body), received_at / 3600000000 ORDER BY id DESC
        ) AS place
    FROM onceward_rejections
    WHERE source = :source
)
DELETE FROM onceward_rejections
WHERE id IN (
    SELECT id FROM ranked WHERE from_first > 1 AND from_last > 1
    ORDER BY place, id DESC LIMIT -1 OFFSET :keep
)
RETURNING id
