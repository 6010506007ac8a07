-- name: store_secret
-- Store a provisioned secret.
INSERT INTO onceward.provisioned_secrets (source, secret, provisioned_at)
VALUES (:source, :secret, :now)
ON CONFLICT DO NOTHING
RETURNING provisioned_at

-- name: provisioned_secrets
-- All provisioned secrets, by source, newest first.
SELECT s.name AS source, p.secret, p.provisioned_at
FROM onceward.provisioned_secrets p
JOIN onceward.sources s ON s.id = p.source
ORDER BY s.name, p.provisioned_at DESC

-- name: delete_secrets
-- Delete the provisioned secrets of a source.
DELETE FROM onceward.provisioned_secrets
WHERE source = (SELECT id FROM onceward.sources WHERE name = :name)
RETURNING source
