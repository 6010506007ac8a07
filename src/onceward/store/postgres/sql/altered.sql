-- name: unsettled
-- Whether jobs that were settled as done are still queued, under a lease that is held: a trigger or a
-- rule discarded the update. `began` is the start of the transaction.
-- Every function and operator has its schema, because the search_path is the handler's.
SELECT
    pg_catalog.now() AS began,
    EXISTS (
        SELECT 1 FROM onceward.jobs
        WHERE id OPERATOR(pg_catalog.=) ANY(:jobs::bigint[]) AND pg_catalog.texteq(status, 'queued')
        AND EXISTS (
            SELECT 1 FROM onceward.leases l
            WHERE l.token OPERATOR(pg_catalog.=) :token
            AND l.jobs OPERATOR(pg_catalog.@>) :jobs::bigint[]
        )
    ) AS is_altered

-- name: marked_effect
-- The mark of an effect, if there is one. Its schema is given, because the search_path is the handler's.
SELECT function FROM onceward.effects WHERE idempotency_key OPERATOR(pg_catalog.=) :key
