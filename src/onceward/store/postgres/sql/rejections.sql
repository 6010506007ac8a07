-- name: add_rejection
-- Store a rejected request, or several that are alike.
INSERT INTO onceward.rejections (received_at, last_at, source, count, cause, reason, request, body)
VALUES (
    to_timestamp(:received_at), to_timestamp(:last_at), :source, :count, :cause, :reason, :request,
    :body
)
RETURNING id
