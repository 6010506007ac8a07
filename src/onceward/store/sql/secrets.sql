-- name: store_secret
-- Keep a secret that a sender handed over.
INSERT INTO onceward.provisioned_secrets (source, secret, provisioned_at)
VALUES (:source, :secret, :now)
ON CONFLICT DO NOTHING
RETURNING provisioned_at

-- name: provisioned_secrets
-- The secrets that senders handed over, the newest first.
SELECT s.name AS source, l.secret, l.provisioned_at
FROM onceward.provisioned_secrets l
JOIN onceward.sources s ON s.id = l.source
ORDER BY s.name, l.provisioned_at DESC

-- name: delete_secrets
-- Forget the secrets that a sender handed over.
DELETE FROM onceward.provisioned_secrets
WHERE source = (SELECT id FROM onceward.sources WHERE name = :name)
RETURNING source
