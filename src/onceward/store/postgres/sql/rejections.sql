-- name: add_rejection
-- Note a request that did not verify, or several alike.
INSERT INTO onceward.rejections (received_at, last_at, source, count, cause, reason, request, body)
VALUES (
    to_timestamp(:received_at), to_timestamp(:last_at), :source, :count, :cause, :reason, :request,
    :body
)
RETURNING id

-- name: count_rejections
-- Count requests that did not verify, by the check that failed.
INSERT INTO onceward.rejection_counts AS c (source, cause, count) VALUES (:source, :cause, :count)
ON CONFLICT (source, cause) DO UPDATE SET count = c.count + EXCLUDED.count
RETURNING count

-- name: trim_rejections
-- Forget all but the newest of a source.
DELETE FROM onceward.rejections
WHERE source = :source AND id <= (
    SELECT id FROM onceward.rejections WHERE source = :source
    ORDER BY id DESC LIMIT 1 OFFSET :keep
)
RETURNING id

-- name: rejections_page
-- Requests that did not verify, the newest first.
SELECT
    CAST(r.id AS text) AS id, s.name AS source, r.cause, r.reason AS check, r.count, r.received_at,
    r.last_at, r.body IS NOT NULL AS kept, CAST(r.received_as AS text) AS received_as
FROM onceward.rejections r
JOIN onceward.sources s ON s.id = r.source
WHERE TRUE
AND r.id < :after  -- if after
AND r.cause = :status  -- if status
ORDER BY r.id DESC
LIMIT :limit

-- name: rejection_counts
-- How many requests did not verify since the ledger was made.
SELECT s.name AS source, c.cause, c.count
FROM onceward.rejection_counts c
JOIN onceward.sources s ON s.id = c.source
ORDER BY s.name, c.cause

-- name: rejection
-- One request that did not verify, with what is kept of it.
SELECT
    s.name AS source, r.received_at, r.request, r.body, CAST(r.received_as AS text) AS received_as
FROM onceward.rejections r
JOIN onceward.sources s ON s.id = r.source
WHERE r.id = :id

-- name: receive_rejection
-- Note that a request that did not verify did so in the end, and forget its content.
UPDATE onceward.rejections SET received_as = :event, request = NULL, body = NULL
WHERE id = :id AND received_as IS NULL AND body IS NOT NULL
RETURNING id

-- name: conflict
-- A delivery that is in conflict with its event, with all that an event of its own needs.
SELECT
    d.outcome, CAST(d.accepted_as AS text) AS accepted_as, s.name AS source, e.event_id, e.type,
    e.reference, d.body_sha256, p.headers,
    COALESCE(d.body, (
        SELECT k.body FROM onceward.deliveries k
        WHERE k.event = d.event AND k.body_sha256 = d.body_sha256 AND k.body IS NOT NULL
        LIMIT 1
    )) AS body
FROM onceward.deliveries d
JOIN onceward.events e ON e.id = d.event
JOIN onceward.sources s ON s.id = e.source
LEFT JOIN onceward.payloads p ON p.event = e.id AND p.received_at = e.received_at
WHERE d.id = :id

-- name: accept_conflict
-- Note the event that a person made of a conflict, on every delivery of the same body.
UPDATE onceward.deliveries d SET accepted_as = :event
FROM onceward.deliveries chosen
WHERE chosen.id = :id AND d.event = chosen.event AND d.body_sha256 = chosen.body_sha256
AND d.outcome = 'conflict' AND d.accepted_as IS NULL
RETURNING d.id

-- name: note_act
-- Note what a person did.
INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
VALUES (clock_timestamp(), :actor, :authenticated_as, :action, :reason, :subject)
RETURNING CAST(id AS text) AS id, at AS created_at

-- name: store_secret
-- Keep a secret that a sender handed over.
INSERT INTO onceward.provisioned_secrets (source, secret, provisioned_at)
VALUES (:source, :secret, clock_timestamp())
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

-- name: purge_events
-- Forget events of a part of the ledger that are beyond the horizon, with all that belongs to them.
-- One that a queued or a failed job still needs stays. Answers with where the next part begins.
WITH page AS MATERIALIZED (
    SELECT
        id, source, body_sha256, received_at,
        received_at < clock_timestamp() - make_interval(secs => :horizon_seconds) AS is_old
    FROM onceward.events WHERE id > :after ORDER BY id LIMIT :limit
), old AS MATERIALIZED (
    -- Locked in the order in which receivers count them: nobody waits for the other in a circle.
    SELECT e.id, e.source, e.body_sha256, e.received_at FROM onceward.events e
    WHERE e.id IN (SELECT id FROM page WHERE is_old) AND NOT EXISTS (
        SELECT 1 FROM onceward.jobs j WHERE j.event = e.id AND j.status IN ('queued', 'failed')
    )
    ORDER BY e.id
    FOR UPDATE
), gone_attempts AS (
    DELETE FROM onceward.attempts a USING onceward.jobs j, old
    WHERE a.job = j.id AND j.event = old.id
), gone_jobs AS (
    DELETE FROM onceward.jobs j USING old WHERE j.event = old.id
), gone_payloads AS (
    DELETE FROM onceward.payloads p USING old
    WHERE p.event = old.id AND p.received_at = old.received_at
), gone_deliveries AS (
    DELETE FROM onceward.deliveries d USING old WHERE d.event = old.id
), gone_body_hashes AS (
    DELETE FROM onceward.body_hashes b USING old
    WHERE b.source = old.source AND b.body_sha256 = old.body_sha256 AND b.event = old.id
), gone_duplicate_bodies AS (
    DELETE FROM onceward.duplicate_bodies t USING old WHERE t.event = old.id
), gone_events AS (
    DELETE FROM onceward.events e USING old WHERE e.id = old.id RETURNING e.id
)
SELECT
    max(id) AS last, COALESCE(bool_and(is_old), false) AS has_more,
    (SELECT count(*) FROM gone_events) AS purged
FROM page
