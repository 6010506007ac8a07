-- name: archive_position
-- Where the archiving of a week continues: after the parts that have no gap before them. A person who
-- deletes the record of a lost file has what the ledger still has of it archived again. An hour after
-- the end of a week, no event is received in it any more.
SELECT
    count(*) AS next_part, COALESCE(max(last_event), 0) AS last_event,
    clock_timestamp() >= to_timestamp(:ends) + interval '1 hour' AS is_over
FROM onceward.archives a
WHERE week = :week AND part = (
    SELECT count(*) FROM onceward.archives b WHERE b.week = a.week AND b.part < a.part
)

-- name: archive_page
-- Events of a week with their payloads, bounded in rows and in bytes. The bounds of the week are
-- constants of the plan, which reads no partition of another week.
WITH leased AS (
    SELECT unnest(jobs) AS id FROM onceward.leases
),
page AS MATERIALIZED (
    SELECT p.event, p.received_at, octet_length(p.body) AS bytes
    FROM onceward.payloads p JOIN onceward.events e ON e.id = p.event
    WHERE p.received_at >= to_timestamp(:starts) AND p.received_at < to_timestamp(:ends)
    AND p.event > :after
    ORDER BY p.event LIMIT :limit
),
bounded AS (
    SELECT
        event, received_at, sum(bytes) OVER (ORDER BY event) AS total,
        row_number() OVER (ORDER BY event) AS position
    FROM page
)
SELECT
    e.id, s.name AS source, e.event_id, e.type, e.reference, p.received_at, e.body_sha256,
    e.deliveries, e.conflicts, e.routed, j.processing_state, j.processed_at,
    p.headers, p.body
FROM bounded b
JOIN onceward.payloads p ON p.event = b.event AND p.received_at = b.received_at
    AND p.received_at >= to_timestamp(:starts) AND p.received_at < to_timestamp(:ends)
JOIN onceward.events e ON e.id = b.event
JOIN onceward.sources s ON s.id = e.source
-- use event_state
WHERE b.position = 1 OR b.total <= :max_bytes
ORDER BY b.event

-- name: has_unarchived
-- Whether an event of the week has a payload that is in no recorded file, as in archive_position.
SELECT EXISTS (
    SELECT 1 FROM onceward.payloads p JOIN onceward.events e ON e.id = p.event
    WHERE p.received_at >= to_timestamp(:starts) AND p.received_at < to_timestamp(:ends)
    AND p.event > (
        SELECT COALESCE(max(last_event), 0) FROM onceward.archives a
        WHERE week = :week AND part = (
            SELECT count(*) FROM onceward.archives b WHERE b.week = a.week AND b.part < a.part
        )
    )
) AS has_unarchived

-- name: restore_event
-- Put back the row of an event that is gone, without jobs, unless its id or its key is in use. Its
-- source may be gone too.
WITH named AS (
    INSERT INTO onceward.sources (name) VALUES (:source) ON CONFLICT (name) DO NOTHING RETURNING id
),
known AS (
    SELECT id FROM named UNION ALL SELECT id FROM onceward.sources WHERE name = :source
)
INSERT INTO onceward.events (
    id, received_at, source, deliveries, conflicts, routed, event_id, type, reference, body_sha256,
    final_state, processed_at
)
SELECT
    :id, timestamptz 'epoch' + :received_us * interval '1 microsecond', known.id, :deliveries,
    :conflicts, :routed, :event_id, :type, :reference, :body_sha256,
    CASE :processing_state WHEN 'succeeded' THEN 'succeeded' ELSE 'ignored' END,
    timestamptz 'epoch' + :processed_us::bigint * interval '1 microsecond'
FROM known
WHERE NOT EXISTS (SELECT 1 FROM onceward.events WHERE id = :id)
ON CONFLICT DO NOTHING
RETURNING id
