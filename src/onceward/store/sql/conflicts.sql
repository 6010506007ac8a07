-- name: load_conflict
-- A redelivery and the facts of its event, to record a conflict as an event of its own. A body is
-- stored once, with the first delivery that had it.
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
-- Store the event that an operator made of a conflict, on every delivery with the same body.
UPDATE onceward.deliveries SET accepted_as = :event
WHERE outcome = 'conflict' AND accepted_as IS NULL
AND (event, body_sha256) = (SELECT event, body_sha256 FROM onceward.deliveries WHERE id = :id)
RETURNING id
