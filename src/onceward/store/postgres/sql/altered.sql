-- name: unsettled
-- Whether jobs whose settlement did not land are still queued, under a lease that is held: a trigger or a
-- rule discarded the update.
-- Every function and operator has its schema, because the search_path is the handler's.
SELECT EXISTS (
    SELECT 1 FROM onceward.jobs j
    JOIN onceward.leases l ON l.token OPERATOR(pg_catalog.=) :token
        AND l.jobs OPERATOR(pg_catalog.@>) :jobs::bigint[]
    WHERE j.id OPERATOR(pg_catalog.=) ANY(:jobs::bigint[]) AND pg_catalog.texteq(j.status, 'queued')
) AS is_altered

-- name: marked_effect
-- The mark of an effect, if there is one. Its schema is given, because the search_path is the handler's.
SELECT
    function,
    COALESCE(used_at, updated_at) OPERATOR(pg_catalog.<) (
        pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) INTERVAL '1 day'
    ) AS is_untouched
FROM onceward.effects WHERE idempotency_key OPERATOR(pg_catalog.=) :key

-- name: touch_effect
-- Store that a key was used, without a change: once a day at most. The schema is given, as above.
UPDATE onceward.effects SET used_at = pg_catalog.clock_timestamp()
WHERE idempotency_key OPERATOR(pg_catalog.=) :key
