-- name: archive_position
-- Where the archiving of a week continues: after the parts that have no gap before them. A person who
-- deletes the record of a lost file has what the ledger still has of it archived again. An hour after
-- the end of a week, no event is received in it any more.
SELECT
    count(*) AS next_part, COALESCE(max(last_event), 0) AS last_event,
    :now >= (:ends + 3600) * 1000000 AS is_over
FROM onceward_archives a
WHERE week = :week AND part = (
    SELECT count(*) FROM onceward_archives b WHERE b.week = a.week AND b.part < a.part
)

-- name: archive_page
-- Events of a week with their payloads, bounded in rows and in bytes. The last event of the week
-- ends the search, which would read the payloads of all later weeks otherwise.
WITH leased AS (
    SELECT value AS id FROM onceward_leases l, json_each(l.jobs)
),
page AS MATERIALIZED (
    SELECT p.event, length(p.body) AS bytes
    FROM onceward_payloads p NOT INDEXED JOIN onceward_events e ON e.id = p.event
    WHERE p.event > :after AND p.event <= (
        SELECT max(event) FROM onceward_payloads
        WHERE received_at >= :starts * 1000000 AND received_at < :ends * 1000000
    )
    AND p.received_at >= :starts * 1000000 AND p.received_at < :ends * 1000000
    ORDER BY p.event LIMIT :limit
),
bounded AS (
    SELECT
        event, sum(bytes) OVER (ORDER BY event) AS total,
        row_number() OVER (ORDER BY event) AS position
    FROM page
)
SELECT
    e.id, s.name AS source, e.event_id, e.type, e.reference, p.received_at, e.body_sha256,
    e.deliveries, e.conflicts, e.routed,
    -- use event_state
    p.headers, p.body
FROM bounded b
JOIN onceward_payloads p ON p.event = b.event
JOIN onceward_events e ON e.id = b.event
JOIN onceward_sources s ON s.id = e.source
WHERE b.position = 1 OR b.total <= :max_bytes
ORDER BY b.event

-- name: has_unarchived
-- Whether an event of the week has a payload that is in no recorded file, as in archive_position.
SELECT EXISTS (
    SELECT 1 FROM onceward_payloads p JOIN onceward_events e ON e.id = p.event
    WHERE p.received_at >= :starts * 1000000 AND p.received_at < :ends * 1000000
    AND p.event > (
        SELECT COALESCE(max(last_event), 0) FROM onceward_archives a
        WHERE week = :week AND part = (
            SELECT count(*) FROM onceward_archives b WHERE b.week = a.week AND b.part < a.part
        )
    )
) AS has_unarchived

-- name: restore_event
-- Put back the row of an event that is gone, without jobs, unless its id or its key is in use. Its
-- source may be gone too.
INSERT INTO onceward_sources (name) VALUES (:source) ON CONFLICT (name) DO NOTHING;
INSERT INTO onceward_events (
    id, received_at, source, deliveries, conflicts, routed, event_id, type, reference, body_sha256,
    final_state, processed_at
)
SELECT
    :id, :received_us, s.id, :deliveries, :conflicts, :routed, :event_id, :type, :reference,
    :body_sha256, CASE :processing_state WHEN 'succeeded' THEN 'succeeded' ELSE 'ignored' END,
    :processed_us
FROM onceward_sources s WHERE s.name = :source
ON CONFLICT DO NOTHING
RETURNING id
