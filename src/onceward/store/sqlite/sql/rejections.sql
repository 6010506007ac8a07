-- name: add_rejection
-- Note a request that did not verify, or several alike.
INSERT INTO onceward_rejections (received_at, last_at, source, count, cause, reason, request, body)
VALUES (
    CAST(:received_at * 1000000 AS INTEGER), CAST(:last_at * 1000000 AS INTEGER), :source, :count,
    :cause, :reason, :request, :body
)
RETURNING id

-- name: count_rejections
-- Count requests that did not verify, by the check that failed.
INSERT INTO onceward_rejection_counts AS c (source, cause, count) VALUES (:source, :cause, :count)
ON CONFLICT (source, cause) DO UPDATE SET count = c.count + EXCLUDED.count
RETURNING count

-- name: trim_rejections
-- Forget all but the newest of a source.
DELETE FROM onceward_rejections
WHERE source = :source AND id <= (
    SELECT id FROM onceward_rejections WHERE source = :source
    ORDER BY id DESC LIMIT 1 OFFSET :keep
)
RETURNING id

-- name: rejections_page
-- Requests that did not verify, the newest first.
SELECT
    CAST(r.id AS text) AS id, s.name AS source, r.cause, r.reason AS "check", r.count, r.received_at,
    r.last_at, r.body IS NOT NULL AS kept, CAST(r.received_as AS text) AS received_as
FROM onceward_rejections r
JOIN onceward_sources s ON s.id = r.source
WHERE TRUE
AND r.id < :after  -- if after
AND r.cause = :status  -- if status
ORDER BY r.id DESC
LIMIT :limit

-- name: rejection_counts
-- How many requests did not verify since the ledger was made.
SELECT s.name AS source, c.cause, c.count
FROM onceward_rejection_counts c
JOIN onceward_sources s ON s.id = c.source
ORDER BY s.name, c.cause

-- name: rejection
-- One request that did not verify, with what is kept of it.
SELECT
    s.name AS source, r.received_at, r.request, r.body, CAST(r.received_as AS text) AS received_as
FROM onceward_rejections r
JOIN onceward_sources s ON s.id = r.source
WHERE r.id = :id

-- name: receive_rejection
-- Note that a request that did not verify did so in the end, and forget its content.
UPDATE onceward_rejections SET received_as = :event, request = NULL, body = NULL
WHERE id = :id AND received_as IS NULL AND body IS NOT NULL
RETURNING id

-- name: conflict
-- A delivery that is in conflict with its event, with all that an event of its own needs.
SELECT
    d.outcome, CAST(d.accepted_as AS text) AS accepted_as, s.name AS source, e.event_id, e.type,
    e.reference, d.body_sha256, p.headers,
    COALESCE(d.body, (
        SELECT k.body FROM onceward_deliveries k
        WHERE k.event = d.event AND k.body_sha256 = d.body_sha256 AND k.body IS NOT NULL
        LIMIT 1
    )) AS body
FROM onceward_deliveries d
JOIN onceward_events e ON e.id = d.event
JOIN onceward_sources s ON s.id = e.source
LEFT JOIN onceward_payloads p ON p.event = e.id
WHERE d.id = :id

-- name: accept_conflict
-- Note the event that a person made of a conflict, on every delivery of the same body.
UPDATE onceward_deliveries SET accepted_as = :event
WHERE outcome = 'conflict' AND accepted_as IS NULL
AND (event, body_sha256) = (SELECT event, body_sha256 FROM onceward_deliveries WHERE id = :id)
RETURNING id

-- name: note_act
-- Note what a person did.
INSERT INTO onceward_audit (at, actor, authenticated_as, action, reason, subject)
VALUES (:now, :actor, :authenticated_as, :action, :reason, :subject)
RETURNING CAST(id AS text) AS id, at AS created_at

-- name: store_secret
-- Keep a secret that a sender handed over.
INSERT INTO onceward_provisioned_secrets (source, secret, provisioned_at) VALUES (:source, :secret, :now)
ON CONFLICT DO NOTHING
RETURNING provisioned_at

-- name: provisioned_secrets
-- The secrets that senders handed over, the newest first.
SELECT s.name AS source, l.secret, l.provisioned_at
FROM onceward_provisioned_secrets l
JOIN onceward_sources s ON s.id = l.source
ORDER BY s.name, l.provisioned_at DESC

-- name: delete_secrets
-- Forget the secrets that a sender handed over.
DELETE FROM onceward_provisioned_secrets
WHERE source = (SELECT id FROM onceward_sources WHERE name = :name)
RETURNING source

-- name: purge_events
-- Forget events of a part of the ledger that are beyond the horizon, with all that belongs to them.
-- One that a queued or a failed job still needs stays. Answers with where the next part begins.
CREATE TEMP TABLE IF NOT EXISTS onceward_old (id INTEGER PRIMARY KEY, source, body_sha256);
DELETE FROM onceward_old;
INSERT INTO onceward_old
SELECT id, source, body_sha256 FROM (
    SELECT * FROM onceward_events WHERE id > :after ORDER BY id LIMIT :limit
) AS page
WHERE received_at < :now - CAST(:horizon_seconds * 1000000 AS INTEGER)
AND NOT EXISTS (
    SELECT 1 FROM onceward_jobs j WHERE j.event = page.id AND j.status IN ('queued', 'failed')
);
CREATE TEMP TABLE IF NOT EXISTS onceward_page (last INTEGER, has_more INTEGER);
DELETE FROM onceward_page;
INSERT INTO onceward_page
SELECT
    max(id),
    COALESCE(min(received_at < :now - CAST(:horizon_seconds * 1000000 AS INTEGER)), 0)
FROM (SELECT id, received_at FROM onceward_events WHERE id > :after ORDER BY id LIMIT :limit);
DELETE FROM onceward_attempts
WHERE job IN (SELECT j.id FROM onceward_jobs j WHERE j.event IN (SELECT id FROM onceward_old));
DELETE FROM onceward_jobs WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_payloads WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_deliveries WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_body_hashes
WHERE (source, body_sha256, event) IN (SELECT source, body_sha256, id FROM onceward_old);
DELETE FROM onceward_duplicate_bodies WHERE event IN (SELECT id FROM onceward_old);
DELETE FROM onceward_events WHERE id IN (SELECT id FROM onceward_old);
SELECT last, has_more, (SELECT count(*) FROM onceward_old) AS purged FROM onceward_page
