-- name: add_rejection
-- Store a rejected request, or several that are alike.
INSERT INTO onceward.rejections (received_at, last_at, source, count, cause, reason, request, body)
VALUES (
    to_timestamp(:received_at), to_timestamp(:last_at), :source, :count, :cause, :reason, :request,
    :body
)
RETURNING id

-- name: trim_rejections
-- Delete rejections of a source beyond `keep`, beside the first and the last of each cause. Every
-- hour of a cause has an equal share, and so have stored requests beside mere counts: a flood
-- displaces its own rows, not those of other hours.
WITH ranked AS (
    SELECT
        id,
        row_number() OVER (PARTITION BY cause ORDER BY id) AS from_first,
        row_number() OVER (PARTITION BY cause ORDER BY id DESC) AS from_last,
        row_number() OVER (
            PARTITION BY cause, body IS NULL, date_trunc('hour', received_at) ORDER BY id DESC
        ) AS place
    FROM onceward.rejections
    WHERE source = :source
)
DELETE FROM onceward.rejections
WHERE id IN (
    SELECT id FROM ranked WHERE from_first > 1 AND from_last > 1
    ORDER BY place, id DESC OFFSET :keep
)
RETURNING id
