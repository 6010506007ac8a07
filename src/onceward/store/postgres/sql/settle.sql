-- How attempts end. Each statement is fenced by the lease.

-- name: settle_done
-- Settle attempts that succeeded, if the lease is still held. Last in the handler's transaction.
-- Every function and operator has its schema, because the search_path is the handler's.
-- texteq() makes each settlement use the primary key instead of the index of due jobs, which has the
-- id as its last column. now() is the start of the transaction: it has changed if the handler ended
-- the transaction and began another. A trigger may return the old row: `landed` is then false.
-- The COMMIT is in the same message, so that a settlement that does not land must be an error: a text
-- that says why is cast to a number, in vain.
-- if committing
WITH settled AS (
-- end
WITH fence AS MATERIALIZED (
    SELECT 1 FROM onceward.leases
    WHERE token OPERATOR(pg_catalog.=) :token AND jobs OPERATOR(pg_catalog.@>) :jobs::bigint[]
    FOR KEY SHARE
)
UPDATE onceward.jobs
SET status = 'done', attempts = attempts OPERATOR(pg_catalog.+) 1,
    finished_at = pg_catalog.clock_timestamp(), last_error = NULL, even_if_stale = false
WHERE id OPERATOR(pg_catalog.=) ANY(:jobs::bigint[]) AND pg_catalog.texteq(status, 'queued')
AND EXISTS (SELECT 1 FROM fence)
-- if committing
    AND pg_catalog.now() OPERATOR(pg_catalog.=) :began::timestamp with time zone
-- end
RETURNING id, pg_catalog.texteq(status, 'done') AS landed
-- if committing
)
SELECT CASE
    WHEN (SELECT pg_catalog.count(*) FROM settled WHERE landed)
        OPERATOR(pg_catalog.=) pg_catalog.cardinality(:jobs::bigint[]) THEN 0
    ELSE CAST(pg_catalog.concat('unsettled: ', CASE
        WHEN pg_catalog.now() OPERATOR(pg_catalog.<>) :began::timestamp with time zone THEN 'ended'
        ELSE COALESCE((
            SELECT pg_catalog.concat('altered ', j.id) FROM onceward.jobs j
            JOIN onceward.leases l ON l.token OPERATOR(pg_catalog.=) :token
                AND l.jobs OPERATOR(pg_catalog.@>) :jobs::bigint[]
            LEFT JOIN settled s ON s.id OPERATOR(pg_catalog.=) j.id AND s.landed
            WHERE j.id OPERATOR(pg_catalog.=) ANY(:jobs::bigint[])
            AND pg_catalog.texteq(j.status, 'queued') AND s.id IS NULL
            LIMIT 1
        ), 'lost')
    END) AS pg_catalog.int4)
END AS settled
-- end

-- name: settle_error
-- Settle an attempt that failed, if the lease is still held: queue the job again, or fail it. A job that
-- would wait for the outcome of an effect is queued if the outcome became known meanwhile: FOR SHARE
-- waits for an operator's answer, which wakes only jobs that have failed. An attempt of this number
-- exists if somebody reset the attempts of the job manually: it stays.
WITH
outcome AS MATERIALIZED (
    SELECT status FROM onceward.effects WHERE id = :effect::bigint FOR SHARE
),
fence AS (
    UPDATE onceward.leases SET jobs = array_remove(jobs, :job::bigint)
    WHERE token = :token AND :job::bigint = ANY(jobs)
    RETURNING worker
),
settlement AS MATERIALIZED (
    SELECT :status = 'queued' OR EXISTS (
        SELECT 1 FROM outcome WHERE status IN ('succeeded', 'failed')
    ) AS is_queued
),
settled AS (
    UPDATE onceward.jobs
    SET status = CASE WHEN is_queued THEN 'queued' ELSE :status END,
        attempts = attempts + 1, solo = false,
        available_at = clock_timestamp() + :delay_seconds * interval '1 second',
        failure_type = CASE WHEN NOT is_queued THEN :failure_type END,
        last_error = :error,
        effect = CASE WHEN NOT is_queued THEN :effect::bigint END,
        finished_at = CASE WHEN NOT is_queued THEN clock_timestamp() END
    FROM settlement
    WHERE id = :job AND status IS NOT DISTINCT FROM 'queued' AND EXISTS (SELECT 1 FROM fence)
    RETURNING id, attempts
),
attempt AS (
    INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error, traceback)
    SELECT
        id, attempts, worker, clock_timestamp() - :elapsed_seconds * interval '1 second',
        clock_timestamp(), :error, :traceback
    FROM settled, fence
    ON CONFLICT (job, number) DO NOTHING
)
SELECT 1 AS landed FROM settled

-- name: settle_failed
-- Fail a job in the transaction of its on_failed, if the lease is still held and the outcome of the
-- effect that it would wait for is still unknown. Last in that transaction, as settle_done.
WITH
outcome AS MATERIALIZED (
    SELECT status FROM onceward.effects WHERE id OPERATOR(pg_catalog.=) :effect::bigint FOR SHARE
),
fence AS (
    UPDATE onceward.leases SET jobs = pg_catalog.array_remove(jobs, :job::bigint)
    WHERE token OPERATOR(pg_catalog.=) :token
    AND jobs OPERATOR(pg_catalog.@>) ARRAY[:job::bigint]
    RETURNING worker
),
settled AS (
    UPDATE onceward.jobs
    SET status = 'failed', attempts = attempts OPERATOR(pg_catalog.+) :counted::int, solo = false,
        giving_up = false, failure_type = :failure_type, last_error = :error, effect = :effect::bigint,
        available_at = pg_catalog.clock_timestamp(), finished_at = pg_catalog.clock_timestamp()
    WHERE id OPERATOR(pg_catalog.=) :job::bigint AND pg_catalog.texteq(status, 'queued')
    AND EXISTS (SELECT 1 FROM fence) AND pg_catalog.now() OPERATOR(pg_catalog.=) :began
    AND NOT EXISTS (
        SELECT 1 FROM outcome
        WHERE pg_catalog.texteq(status, 'succeeded') OR pg_catalog.texteq(status, 'failed')
    )
    RETURNING id, attempts, pg_catalog.texteq(status, 'failed') AS landed
),
attempt AS (
    INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error, traceback)
    SELECT
        settled.id, settled.attempts, fence.worker,
        pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-)
            pg_catalog.make_interval(secs => :elapsed_seconds::float8),
        pg_catalog.clock_timestamp(), :error, :traceback
    FROM settled, fence
    ON CONFLICT (job, number) DO NOTHING
)
SELECT landed FROM settled

-- name: postpone
-- Postpone a job that could not run because of the store, without counting an attempt.
WITH fence AS (
    UPDATE onceward.leases SET jobs = array_remove(jobs, :job::bigint)
    WHERE token = :token AND :job::bigint = ANY(jobs)
    RETURNING 1
)
UPDATE onceward.jobs
SET available_at = clock_timestamp() + :delay_seconds * interval '1 second', last_error = :error
WHERE id = :job AND status IS NOT DISTINCT FROM 'queued' AND EXISTS (SELECT 1 FROM fence)
RETURNING 1 AS landed

-- name: mark_effect
-- Mark an effect as done, unless it is done already. Waits for a concurrent transaction with the same
-- key to end. The schema of the function is given, because the search_path is the handler's.
INSERT INTO onceward.effects (job, created_at, updated_at, idempotency_key, reference, status)
SELECT :job, at, at, :key, :reference, 'succeeded' FROM pg_catalog.clock_timestamp() AS at
ON CONFLICT ON CONSTRAINT effects_once DO NOTHING
RETURNING 1 AS is_first
