-- name: reclaim_expired
-- Delete expired leases. A job that ran alone is blamed for the death of its worker and loses an
-- attempt; the delay before the next one doubles with each attempt. Jobs that ran together are only
-- marked to run alone next time.
-- IS NOT DISTINCT FROM keeps the planner from the index of due jobs: it would read the whole backlog.
WITH
expired AS MATERIALIZED (
    SELECT token, worker, until, jobs FROM onceward.leases
    WHERE until < clock_timestamp()
    FOR UPDATE SKIP LOCKED
),
ended AS (
    DELETE FROM onceward.leases l USING expired WHERE l.token = expired.token
),
abandoned AS MATERIALIZED (
    SELECT j.id, j.solo, expired.worker, expired.until
    FROM expired
    CROSS JOIN LATERAL unnest(expired.jobs) AS leased (id)
    JOIN onceward.jobs j ON j.id = leased.id AND j.status IS NOT DISTINCT FROM 'queued'
),
marked_solo AS (
    -- The status is checked again: the job may have been settled since the snapshot.
    UPDATE onceward.jobs j SET solo = true FROM abandoned a
    WHERE j.id = a.id AND j.status IS NOT DISTINCT FROM 'queued' AND NOT a.solo
),
blamed AS (
    UPDATE onceward.jobs j
    SET attempts = j.attempts + 1,
        status = CASE WHEN j.attempts + 1 < j.max_attempts THEN 'queued' ELSE 'failed' END,
        failure_type = CASE WHEN j.attempts + 1 < j.max_attempts THEN NULL ELSE 'exhausted' END,
        finished_at = CASE WHEN j.attempts + 1 < j.max_attempts THEN NULL
                           ELSE clock_timestamp() END,
        available_at = clock_timestamp() + interval '1 second'
            * LEAST(:base_seconds::float8 * (1::bigint << LEAST(j.attempts, 40)), :max_seconds::float8),
        last_error = :error
    FROM abandoned a
    WHERE j.id = a.id AND j.status IS NOT DISTINCT FROM 'queued' AND a.solo
    RETURNING j.id, j.attempts, a.worker, a.until
),
failed_attempts AS (
    INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error)
    SELECT id, attempts, worker, LEAST(until, clock_timestamp()), clock_timestamp(), :error
    FROM blamed
    ON CONFLICT (job, number) DO NOTHING
)
SELECT count(*) AS abandoned FROM abandoned

-- name: end_leases
-- Delete leases whose jobs are all settled.
DELETE FROM onceward.leases WHERE token = ANY(:tokens::text[])

-- name: claim
-- Lease the jobs that have been due for longest. Writes one lease row and no job.
WITH
leased AS MATERIALIZED (
    SELECT unnest(jobs) AS id FROM onceward.leases
),
due AS MATERIALIZED (
    SELECT oldest.*
    FROM unnest(:handlers::int[]) AS mine (handler)
    CROSS JOIN LATERAL (
        SELECT id, available_at, received_at FROM onceward.jobs
        WHERE status = 'queued' AND handler = mine.handler AND solo = :solo
        AND available_at <= statement_timestamp()
        AND id NOT IN (SELECT id FROM leased)
        ORDER BY available_at, id
        LIMIT :limit
    ) AS oldest
    ORDER BY available_at, id
    LIMIT :limit
),
lease AS (
    INSERT INTO onceward.leases (token, worker, until, jobs)
    SELECT
        :token, :worker, clock_timestamp() + :lease_seconds * interval '1 second',
        array_agg(id ORDER BY available_at, id)
    FROM due
    HAVING count(*) > 0
    RETURNING jobs
)
SELECT
    jobs, (SELECT min(received_at) FROM due) AS oldest, (SELECT max(received_at) FROM due) AS newest
FROM lease

-- name: next_due
-- Whether a job that must run alone is due, and the time until the next job is due.
WITH
leased AS MATERIALIZED (
    SELECT unnest(jobs) AS id FROM onceward.leases
),
next AS (
    SELECT mine.solo, soonest.available_at
    FROM (
        SELECT handler, solo
        FROM unnest(:handlers::int[]) AS handler, unnest(ARRAY[false, true]) AS solo
    ) AS mine
    CROSS JOIN LATERAL (
        SELECT available_at FROM onceward.jobs
        WHERE status = 'queued' AND handler = mine.handler AND solo = mine.solo
        AND id NOT IN (SELECT id FROM leased)
        ORDER BY available_at, id
        LIMIT 1
    ) AS soonest
)
SELECT
    COALESCE(bool_or(solo AND available_at <= clock_timestamp()), false) AS solo_waiting,
    EXTRACT(EPOCH FROM min(available_at) - clock_timestamp())::float8 AS next_due_seconds
FROM next

-- name: load_jobs
-- The data for the handlers of some jobs. A large body is loaded when its job starts.
-- LIMIT 1 forces a lookup by key. While the tables are small the planner would rather read them whole,
-- and the connection keeps its plan.
-- `within_weeks` replaces the bounds, so that the plan has the partitions of the jobs alone: a plan
-- locks all of its partitions whenever it runs.
SELECT
    j.id, h.name AS handler, j.attempts, j.max_attempts, j.event, s.name AS source, e.event_id,
    e.type, e.reference, e.received_at,
    COALESCE(p.headers, '{}'::bytea) AS headers,
    CASE WHEN octet_length(p.body) <= :inline_bytes THEN p.body END AS body
FROM unnest(:jobs::bigint[]) WITH ORDINALITY AS leased (job, position)
CROSS JOIN LATERAL (SELECT * FROM onceward.jobs WHERE id = leased.job LIMIT 1) AS j
CROSS JOIN LATERAL (SELECT * FROM onceward.events WHERE id = j.event LIMIT 1) AS e
LEFT JOIN LATERAL (
    SELECT headers, body FROM onceward.payloads
    WHERE event = j.event AND received_at = j.received_at
    AND received_at >= timestamptz '-infinity' AND received_at < timestamptz 'infinity'
    LIMIT 1
) AS p ON true
JOIN onceward.handlers h ON h.id = j.handler
JOIN onceward.sources s ON s.id = e.source
ORDER BY leased.position

-- name: load_body
-- The body of one event.
SELECT body FROM onceward.payloads WHERE event = :event AND received_at = :received_at

-- name: renew
-- Extend leases and return those that are still held.
UPDATE onceward.leases
SET until = clock_timestamp() + :lease_seconds * interval '1 second'
WHERE token = ANY(:tokens::text[])
RETURNING token

-- name: release
-- Release jobs that were not started, without counting an attempt.
WITH shrunk AS (
    UPDATE onceward.leases
    SET jobs = ARRAY(SELECT id FROM unnest(jobs) AS id WHERE id <> ALL(:jobs::bigint[]))
    WHERE token = :token
)
SELECT pg_notify('onceward_jobs', '')

-- name: settle_done
-- Settle attempts that succeeded, if the lease is still held. Last in the handler's transaction.
-- Every function and operator has its schema, because the search_path is the handler's.
-- texteq() makes each settlement use the primary key instead of the index of due jobs, which has the
-- id as its last column. now() is the start of the transaction: it has changed if the handler ended
-- the transaction and began another.
WITH fence AS MATERIALIZED (
    SELECT 1 FROM onceward.leases
    WHERE token OPERATOR(pg_catalog.=) :token AND jobs OPERATOR(pg_catalog.@>) :jobs::bigint[]
    FOR KEY SHARE
)
UPDATE onceward.jobs
SET status = 'done', attempts = attempts OPERATOR(pg_catalog.+) 1,
    finished_at = pg_catalog.clock_timestamp(), last_error = NULL
WHERE id OPERATOR(pg_catalog.=) ANY(:jobs::bigint[]) AND pg_catalog.texteq(status, 'queued')
AND EXISTS (SELECT 1 FROM fence)
-- if began
    AND pg_catalog.now() OPERATOR(pg_catalog.=) :began
-- end
RETURNING 1 AS landed

-- name: settle_error
-- Settle an attempt that failed, if the lease is still held: queue the job again, or fail it.
WITH
fence AS (
    UPDATE onceward.leases SET jobs = array_remove(jobs, :job::bigint)
    WHERE token = :token AND :job::bigint = ANY(jobs)
    RETURNING worker
),
settled AS (
    UPDATE onceward.jobs
    SET status = :status, attempts = attempts + 1, solo = false,
        available_at = clock_timestamp() + :delay_seconds * interval '1 second',
        failure_type = :failure_type, last_error = :error,
        finished_at = CASE WHEN :status = 'queued' THEN NULL ELSE clock_timestamp() END
    WHERE id = :job AND status IS NOT DISTINCT FROM 'queued' AND EXISTS (SELECT 1 FROM fence)
    RETURNING id, attempts
)
INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error, traceback)
SELECT
    id, attempts, worker, clock_timestamp() - :elapsed_seconds * interval '1 second',
    clock_timestamp(), :error, :traceback
FROM settled, fence
RETURNING 1 AS landed

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
