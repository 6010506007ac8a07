-- name: add_rejection
-- Store a rejected request, or several that are alike.
INSERT INTO onceward_rejections (received_at, last_at, source, count, cause, reason, request, body)
VALUES (
    CAST(:received_at * 1000000 AS INTEGER), CAST(:last_at * 1000000 AS INTEGER), :source, :count,
    :cause, :reason, :request, :body
)
RETURNING id
