-- name: record_new
-- Record a new event with its payload and jobs, and return its id. Returns no row for a redelivery.
-- Rule 1 of duplicate_body flags an event whose covered content came before, rule 2 also holds its
-- jobs.
-- changes() tells each statement whether the previous one inserted a row. `keys` are pairs of a path
-- and the key of the event there, as a JSON array; `filters` is an array of the filters that it passes.
-- `altered` is the table whose rows a trigger discarded. The whole batch is then rolled back.
INSERT INTO onceward_events
    (id, received_at, source, routed, event_id, type, reference, body_sha256)
SELECT
    :id, :now, :source,
    EXISTS (
        SELECT 1 FROM onceward_routes r
        WHERE r.source IN (0, :source)
        AND CASE WHEN r.is_prefix THEN substr(:type, 1, length(r.type)) = r.type
                 ELSE :type = r.type END
    ),
    :event_id, :type, :reference, :sha256
WHERE TRUE
ON CONFLICT (source, event_id) DO NOTHING;
INSERT INTO onceward_payloads (event, received_at, headers, body)
SELECT :id, :now, :headers, :body WHERE changes() = 1;
INSERT INTO onceward_jobs
    (event, received_at, available_at, created_at, handler, max_attempts, ordering_key)
SELECT DISTINCT
    :id, :now, :now, :now, h.id, h.max_attempts,
    CASE WHEN h.ordering_key IS NOT NULL THEN (
        SELECT json_extract(pair.value, '$[1]') FROM json_each(:keys) AS pair
        WHERE json_extract(pair.value, '$[0]') = h.ordering_key
    ) END
FROM onceward_routes r JOIN onceward_handlers h ON h.id = r.handler
WHERE changes() = 1
AND r.source IN (0, :source)
AND CASE WHEN r.is_prefix THEN substr(:type, 1, length(r.type)) = r.type ELSE :type = r.type END
AND (r.filter = '' OR r.filter IN (SELECT value FROM json_each(:filters)));
-- if filtered
UPDATE onceward_events SET final_state = 'ignored'
WHERE id = :id AND routed AND NOT EXISTS (SELECT 1 FROM onceward_jobs WHERE event = :id);
-- end
-- if reviewed
UPDATE onceward_events SET final_state = 'review' WHERE id = :id AND NOT routed;
-- end
-- if duplicate_body
INSERT INTO onceward_duplicate_bodies (event, original)
SELECT e.id, b.event FROM onceward_events e
JOIN onceward_body_hashes b ON b.source = e.source AND b.body_sha256 = :covered_sha256
WHERE e.id = :id;
INSERT INTO onceward_body_hashes (source, body_sha256, event)
SELECT source, :covered_sha256, id FROM onceward_events WHERE id = :id
ON CONFLICT DO NOTHING;
UPDATE onceward_jobs
SET status = 'failed', failure_type = 'held', last_error = :held_error, finished_at = :now
WHERE event = :id AND :rule = 2 AND event IN (SELECT event FROM onceward_duplicate_bodies);
-- end
SELECT
    id AS event, 'recorded' AS outcome,
    CASE
        WHEN NOT EXISTS (SELECT 1 FROM onceward_payloads WHERE event = :id) THEN 'onceward_payloads'
        WHEN (SELECT count(*) FROM onceward_jobs WHERE event = :id) <> (
            SELECT count(DISTINCT h.id)
            FROM onceward_routes r JOIN onceward_handlers h ON h.id = r.handler
            WHERE r.source IN (0, :source)
            AND CASE WHEN r.is_prefix THEN substr(:type, 1, length(r.type)) = r.type
                     ELSE :type = r.type END
            AND (r.filter = '' OR r.filter IN (SELECT value FROM json_each(:filters)))
        ) THEN 'onceward_jobs'
    END AS altered
FROM onceward_events WHERE id = :id

-- name: record_duplicates
-- Record a duplicate of an event whose id is known: count it, and store a row up to the limit. Returns
-- no row unless the event with this id has the same key and body.
INSERT INTO onceward_deliveries (id, event, received_at, outcome, body_sha256)
SELECT :id, id, :now, 'duplicate', :sha256 FROM onceward_events
WHERE id = :event AND source = :source AND event_id = :event_id AND body_sha256 = :sha256
AND deliveries - 1 - conflicts < :row_limit;
UPDATE onceward_events SET deliveries = deliveries + 1
WHERE id = :event AND source = :source AND event_id = :event_id AND body_sha256 = :sha256
RETURNING id AS event

-- name: record_redeliveries
-- Record a duplicate or a conflict: count it, and store a row up to the limit. `altered` is the table
-- whose row a trigger discarded.
INSERT INTO onceward_deliveries (id, event, received_at, outcome, body_sha256, body)
SELECT
    :id, e.id, :now, CASE WHEN e.body_sha256 <> :sha256 THEN 'conflict' ELSE 'duplicate' END,
    :sha256,
    CASE WHEN e.body_sha256 <> :sha256 AND NOT EXISTS (
        SELECT 1 FROM onceward_deliveries d WHERE d.event = e.id AND d.body_sha256 = :sha256
    ) THEN :body END
FROM onceward_events e
WHERE e.source = :source AND e.event_id = :event_id
AND CASE WHEN e.body_sha256 <> :sha256 THEN e.conflicts ELSE e.deliveries - 1 - e.conflicts END
    < :row_limit;
UPDATE onceward_events
SET deliveries = deliveries + 1, conflicts = conflicts + (body_sha256 <> :sha256)
WHERE source = :source AND event_id = :event_id;
SELECT
    id AS event, CASE WHEN body_sha256 <> :sha256 THEN 'conflict' ELSE 'duplicate' END AS outcome,
    CASE WHEN
        CASE WHEN body_sha256 <> :sha256 THEN conflicts ELSE deliveries - 1 - conflicts END
            <= :row_limit
        AND NOT EXISTS (SELECT 1 FROM onceward_deliveries WHERE id = :id)
    THEN 'onceward_deliveries' END AS altered
FROM onceward_events WHERE source = :source AND event_id = :event_id
