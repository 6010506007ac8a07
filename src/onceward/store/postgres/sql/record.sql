-- fragment: known_schema
-- Fail if a newer version has migrated the database. A migration locks the table, so that a statement
-- that waits for it sees its row.
AND (
    SELECT CASE WHEN max(number) > :schema::int THEN ('newer schema ' || max(number))::int ELSE 0 END
    FROM onceward.migrations
) = 0

-- name: record_new
-- Record new events with their payloads and jobs, and return the new ones: one row with arrays, which
-- the driver reads faster than rows.
-- Rule 1 of duplicate_body flags an event whose covered content came before, rule 2 also holds its
-- jobs. first_event_with() also sees the event of a receiver that committed during this statement.
-- Ids follow the order of arrival. Rows are inserted in the order of their keys, so that two receivers
-- cannot deadlock.
-- routes_file is the file of the routes that this process registered: after a restore it is another one,
-- and the ids of sources and the routes may be too. Nothing is then recorded.
-- The receiver reads the keys and evaluates the filters that it knows. If a matching route has another
-- one, nothing is recorded either, and the row has no positions.
-- A trigger may discard or change rows. The statement then fails, with the name of the table in a cast
-- that cannot succeed: a check after the statement would come after its commit.
WITH
arrived AS MATERIALIZED (
    SELECT nextval('onceward.ledger_ids') AS id, a.*
    FROM unnest(
        :sources::int[], :event_ids::text[], :types::text[], :references::text[],
        :sha256s::bytea[], :headers::bytea[], :bodies::bytea[]
    ) WITH ORDINALITY AS a (source, event_id, type, reference, sha256, headers, body, position)
    WHERE true
    -- use known_schema
    -- if registered
    AND pg_relation_filenode('onceward.routes') = :routes_file::oid
    -- end
),
wanted AS MATERIALIZED (
    SELECT DISTINCT
        kind.source, kind.type, r.filter, h.id AS handler, h.max_attempts, h.ordering_key AS path
    FROM (SELECT DISTINCT source, type FROM arrived) AS kind
    JOIN onceward.routes r
        ON r.source IN (0, kind.source)
        AND CASE WHEN r.is_prefix THEN starts_with(kind.type, r.type) ELSE kind.type = r.type END
    JOIN onceward.handlers h ON h.id = r.handler
),
-- if ordered
keys AS MATERIALIZED (
    SELECT * FROM unnest(:key_positions::bigint[], :key_paths::text[], :keys::text[])
        AS k (position, path, key)
),
-- end
-- if filtered
verdicts AS MATERIALIZED (
    SELECT * FROM unnest(:verdict_positions::bigint[], :filters::text[], :verdicts::int[])
        AS v (position, filter, passes)
),
passed AS MATERIALIZED (
    SELECT DISTINCT position
    FROM arrived JOIN wanted USING (source, type) LEFT JOIN verdicts USING (position, filter)
    WHERE filter = '' OR passes = 1
),
-- end
unread AS MATERIALIZED (
    SELECT 1
    FROM wanted
    -- if ordered
    JOIN arrived USING (source, type)
    LEFT JOIN keys USING (position, path)
    -- end
    WHERE path IS NOT NULL
    -- if ordered
    AND keys.position IS NULL
    -- end
    UNION ALL
    SELECT 1
    FROM wanted
    -- if filtered
    JOIN arrived USING (source, type)
    LEFT JOIN verdicts USING (position, filter)
    -- end
    WHERE filter <> ''
    -- if filtered
    AND verdicts.position IS NULL
    -- end
    LIMIT 1
),
recorded AS (
    INSERT INTO onceward.events
        (
            -- if jobless
            final_state,
            -- end
            id, received_at, source, routed, event_id, type, reference, body_sha256
        )
    SELECT
        -- if jobless
        CASE
        -- end
            -- if filtered
            WHEN position NOT IN (SELECT position FROM passed)
                AND EXISTS (SELECT 1 FROM wanted w WHERE w.source = a.source AND w.type = a.type)
                THEN 'ignored'
            -- end
            -- if reviewed
            WHEN (:reviewed::int[])[position] = 1 AND NOT EXISTS (
                SELECT 1 FROM wanted w WHERE w.source = a.source AND w.type = a.type
            ) THEN 'review'
            -- end
        -- if jobless
        END,
        -- end
        id, now(), source,
        EXISTS (SELECT 1 FROM wanted w WHERE w.source = a.source AND w.type = a.type),
        event_id, type, reference, sha256
    FROM arrived a
    -- NOT EXISTS would be a node of its own in the plan, which copies every row.
    WHERE id > coalesce((SELECT 9223372036854775807 FROM unread), 0)
    ORDER BY source, event_id, id
    ON CONFLICT ON CONSTRAINT events_once DO NOTHING
    RETURNING id, source AS stored_source, event_id AS stored_event_id
),
-- if duplicate_body
checked AS MATERIALIZED (
    SELECT id, source, c.sha256, c.rule
    FROM recorded JOIN arrived USING (id)
    JOIN unnest(:rules::int[], :covered_sha256s::bytea[])
        WITH ORDINALITY AS c (rule, sha256, position) USING (position)
    WHERE c.rule > 0
),
first_bodies AS (
    INSERT INTO onceward.body_hashes (source, body_sha256, event)
    SELECT DISTINCT ON (source, sha256) source, sha256, id
    FROM checked ORDER BY source, sha256, id
    ON CONFLICT DO NOTHING
    RETURNING event
),
later_bodies AS (
    INSERT INTO onceward.duplicate_bodies (event, original)
    SELECT id, onceward.first_event_with(source, sha256)
    FROM checked WHERE id NOT IN (SELECT event FROM first_bodies)
    RETURNING event
),
held AS MATERIALIZED (
    SELECT id FROM checked WHERE rule = 2 AND id IN (SELECT event FROM later_bodies)
),
-- end
stored_payloads AS (
    INSERT INTO onceward.payloads (event, received_at, headers, body)
    SELECT id, now(), headers, body FROM recorded JOIN arrived USING (id)
    RETURNING received_at
),
planned AS MATERIALIZED (
    SELECT
        -- if filtered
        -- Two filters of a handler may both let an event pass.
        DISTINCT
        -- end
        -- if ordered
        key,
        -- end
        id, handler, max_attempts
    FROM recorded JOIN arrived USING (id) JOIN wanted USING (source, type)
    -- if ordered
    LEFT JOIN keys USING (position, path)
    -- end
    -- if filtered
    LEFT JOIN verdicts USING (position, filter)
    WHERE filter = '' OR passes = 1
    -- end
),
queued AS (
    INSERT INTO onceward.jobs (
        -- if duplicate_body
        status, failure_type, last_error, finished_at,
        -- end
        -- if ordered
        ordering_key,
        -- end
        event, received_at, available_at, created_at, handler, max_attempts
    )
    SELECT
        -- if duplicate_body
        CASE WHEN held.id IS NULL THEN 'queued' ELSE 'failed' END,
        CASE WHEN held.id IS NOT NULL THEN 'held' END,
        CASE WHEN held.id IS NOT NULL THEN :held_error END,
        CASE WHEN held.id IS NOT NULL THEN now() END,
        -- end
        -- if ordered
        key,
        -- end
        id, now(), now(), now(), handler, max_attempts
    FROM planned
    -- if duplicate_body
    LEFT JOIN held USING (id)
    -- end
    ORDER BY id, handler
    RETURNING 1
)
SELECT
    array_agg(position) AS positions, array_agg(id) AS events,
    CASE
        WHEN (SELECT count(*) FROM recorded) <> count(*) FILTER (
            WHERE stored_event_id = event_id AND stored_source = source
        ) THEN ('altered onceward.events ' || count(*))::int::text
        WHEN (SELECT count(*) FROM stored_payloads WHERE received_at = now()) <> count(*)
            THEN ('altered onceward.payloads ' || count(*))::int::text
        WHEN (SELECT count(*) FROM queued) <> (SELECT count(*) FROM planned)
            THEN ('altered onceward.jobs ' || count(*))::int::text
        ELSE 'recorded'
    END AS outcome,
    EXISTS (SELECT 1 FROM queued) AS has_jobs
FROM recorded JOIN arrived USING (id)
HAVING count(*) > 0 OR EXISTS (SELECT 1 FROM recorded) OR EXISTS (SELECT 1 FROM unread)

-- name: record_duplicates
-- Record duplicates of events whose ids are known: count all, and store a row each up to the limit.
-- Returns the events that have the expected key and body. After a failover to a standby that lacks the
-- last transactions, an id may belong to another event.
-- width_bucket() on a sorted array is a binary search that returns the index. The index scan locks
-- rows in the order of their ids, so that two receivers cannot deadlock.
WITH
counted AS (
    UPDATE onceward.events e
    SET deliveries = e.deliveries + (:counts::int[])[width_bucket(e.id, :events::bigint[])]
    WHERE e.id = ANY(:events::bigint[])
    -- use known_schema
    -- if registered
    AND pg_relation_filenode('onceward.routes') = :routes_file::oid
    -- end
    AND e.source = (:sources::int[])[width_bucket(e.id, :events::bigint[])]
    AND e.event_id = (:event_ids::text[])[width_bucket(e.id, :events::bigint[])]
    AND e.body_sha256 = (:sha256s::bytea[])[width_bucket(e.id, :events::bigint[])]
    RETURNING
        id AS event, body_sha256, deliveries - 1 - conflicts AS last,
        deliveries - conflicts - (:counts::int[])[width_bucket(id, :events::bigint[])] AS first
),
stored AS (
    INSERT INTO onceward.deliveries (id, event, received_at, outcome, body_sha256)
    SELECT nextval('onceward.ledger_ids'), event, clock_timestamp(), 'duplicate', body_sha256
    FROM counted, generate_series(first, least(last, :row_limit))
)
SELECT event FROM counted

-- name: record_redeliveries
-- Record duplicates and conflicts: count all, and store a row each up to the limit. A conflict whose
-- body was not sent is left out.
-- This is a statement of its own, because record_new cannot see the rows to which it lost a race.
-- LIMIT 1 forces a lookup by key, as in load_jobs, and rows are locked in the order of their ids, as
-- above. Two receivers may store the same conflicting body twice, which is cheaper than a lock.
-- Altered rows fail the statement, as in record_new: a conflicting body must not be lost.
WITH
arrived AS MATERIALIZED (
    SELECT * FROM unnest(
        :sources::int[], :event_ids::text[], :sha256s::bytea[], :bodies::bytea[]
    ) WITH ORDINALITY AS a (source, event_id, sha256, body, position)
    WHERE true
    -- use known_schema
    -- if registered
    AND pg_relation_filenode('onceward.routes') = :routes_file::oid
    -- end
),
matched AS MATERIALIZED (
    SELECT e.*
    FROM (SELECT DISTINCT source, event_id FROM arrived) AS key
    CROSS JOIN LATERAL (
        SELECT id, source, event_id, body_sha256
        FROM onceward.events
        WHERE source = key.source AND event_id = key.event_id
        LIMIT 1
    ) AS e
),
classified AS MATERIALIZED (
    SELECT
        a.position, m.id AS event, a.sha256, a.body,
        a.sha256 <> m.body_sha256 AS is_conflict, stored.at IS NOT NULL AS body_is_stored
    FROM arrived a
    JOIN matched m USING (source, event_id)
    LEFT JOIN LATERAL (
        SELECT received_at AS at FROM onceward.deliveries
        WHERE event = m.id AND body_sha256 = a.sha256 AND a.sha256 <> m.body_sha256
        LIMIT 1
    ) AS stored ON true
    WHERE a.body IS NOT NULL OR a.sha256 = m.body_sha256
),
tally AS MATERIALIZED (
    SELECT event, count(*) AS deliveries, count(*) FILTER (WHERE is_conflict) AS conflicts
    FROM classified GROUP BY event ORDER BY event
),
tallies AS MATERIALIZED (
    SELECT
        array_agg(event) AS events, array_agg(deliveries) AS deliveries,
        array_agg(conflicts) AS conflicts
    FROM tally
),
counted AS (
    UPDATE onceward.events e
    SET deliveries = e.deliveries
            + (SELECT deliveries FROM tallies)[width_bucket(e.id, (SELECT events FROM tallies))],
        conflicts = e.conflicts
            + (SELECT conflicts FROM tallies)[width_bucket(e.id, (SELECT events FROM tallies))]
    WHERE e.id = ANY((SELECT events FROM tallies)::bigint[])
    RETURNING id AS event, deliveries, conflicts
),
ranked AS (
    SELECT
        c.*,
        CASE
            WHEN is_conflict THEN n.conflicts - t.conflicts
            ELSE n.deliveries - t.deliveries - 1 - (n.conflicts - t.conflicts)
        END + row_number() OVER (PARTITION BY event, is_conflict ORDER BY position) AS ordinal,
        row_number() OVER (PARTITION BY event, sha256 ORDER BY position) AS body_ordinal
    FROM classified c JOIN tally t USING (event) JOIN counted n USING (event)
),
stored AS (
    INSERT INTO onceward.deliveries (id, event, received_at, outcome, body_sha256, body)
    SELECT
        nextval('onceward.ledger_ids'), event, clock_timestamp(),
        CASE WHEN is_conflict THEN 'conflict' ELSE 'duplicate' END, sha256,
        CASE WHEN is_conflict AND NOT body_is_stored AND body_ordinal = 1 THEN body END
    FROM ranked
    WHERE ordinal <= :row_limit
    ORDER BY position
    RETURNING 1
)
SELECT
    array_agg(position) AS positions, array_agg(event) AS events,
    CASE
        WHEN (SELECT count(*) FROM counted) <> (SELECT count(*) FROM tally)
            THEN ('altered onceward.events ' || count(*))::int::text
        WHEN (SELECT count(*) FROM stored)
            <> (SELECT count(*) FROM ranked WHERE ordinal <= :row_limit)
            THEN ('altered onceward.deliveries ' || count(*))::int::text
        WHEN is_conflict THEN 'conflict'
        ELSE 'duplicate'
    END AS outcome,
    false AS has_jobs
FROM classified
GROUP BY is_conflict
