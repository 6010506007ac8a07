-- name: reclaim_expired
-- End expired leases. A job that ran alone is blamed for its worker's death; jobs that shared a
-- worker are only marked to run alone next time. The lock lets one worker at a time reclaim_expired and
-- claim, over all machines; it is a statement of its own so that the next one sees what came before.
-- "Is not distinct" says "equals", so that a claim in a large backlog does not read all of it here.
WITH
expired AS MATERIALIZED (
    SELECT token, worker, until, jobs FROM onceward.leases
    WHERE until < clock_timestamp()
    FOR UPDATE SKIP LOCKED
),
ended AS (
    DELETE FROM onceward.leases l USING expired WHERE l.token = expired.token
),
stranded AS MATERIALIZED (
    SELECT j.id, j.solo, expired.worker, expired.until
    FROM expired
    CROSS JOIN LATERAL unnest(expired.jobs) AS held (id)
    JOIN onceward.jobs j ON j.id = held.id AND j.status IS NOT DISTINCT FROM 'queued'
),
marked AS (
    -- The status is asked for again: a job may have been settled since the snapshot was taken.
    UPDATE onceward.jobs j SET solo = true FROM stranded s
    WHERE j.id = s.id AND j.status IS NOT DISTINCT FROM 'queued' AND NOT s.solo
),
blamed AS (
    UPDATE onceward.jobs j
    SET attempts = j.attempts + 1,
        status = CASE WHEN j.attempts + 1 < j.max_attempts THEN 'queued' ELSE 'failed' END,
        failure_type = CASE WHEN j.attempts + 1 < j.max_attempts THEN NULL ELSE 'exhausted' END,
        finished_at = CASE WHEN j.attempts + 1 < j.max_attempts THEN NULL
                           ELSE clock_timestamp() END,
        available_at = clock_timestamp() + :delay_seconds * interval '1 second',
        last_error = :error
    FROM stranded s
    WHERE j.id = s.id AND j.status IS NOT DISTINCT FROM 'queued' AND s.solo
    RETURNING j.id, j.attempts, s.worker, s.until
),
noted AS (
    INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error)
    SELECT id, attempts, worker, LEAST(until, clock_timestamp()), clock_timestamp(), :error
    FROM blamed
    ON CONFLICT (job, number) DO NOTHING
)
SELECT count(*) AS stranded FROM stranded

-- name: end_leases
-- Forget leases of which every job is settled.
DELETE FROM onceward.leases WHERE token = ANY(:tokens::text[])

-- name: claim
-- Lease the jobs that have been due for longest: one row for all of them, no job is touched.
WITH
held AS MATERIALIZED (
    SELECT unnest(jobs) AS id FROM onceward.leases
),
due AS MATERIALIZED (
    SELECT oldest.id, oldest.available_at
    FROM unnest(:handlers::int[]) AS mine (handler)
    CROSS JOIN LATERAL (
        SELECT id, available_at FROM onceward.jobs
        WHERE status = 'queued' AND handler = mine.handler AND solo = :solo
        AND available_at <= statement_timestamp()
        AND id NOT IN (SELECT id FROM held)
        ORDER BY available_at, id
        LIMIT :limit
    ) AS oldest
    ORDER BY available_at, id
    LIMIT :limit
)
INSERT INTO onceward.leases (token, worker, until, jobs)
SELECT
    :token, :worker, clock_timestamp() + :lease_seconds * interval '1 second',
    array_agg(id ORDER BY available_at, id)
FROM due
HAVING count(*) > 0
RETURNING jobs

-- name: next_due
-- What waits: whether a job that must run alone is due, and when the next job is.
WITH
held AS MATERIALIZED (
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
        AND id NOT IN (SELECT id FROM held)
        ORDER BY available_at, id
        LIMIT 1
    ) AS soonest
)
SELECT
    COALESCE(bool_or(solo AND available_at <= clock_timestamp()), false) AS solo_waiting,
    EXTRACT(EPOCH FROM min(available_at) - clock_timestamp())::float8 AS next_due_seconds
FROM next

-- name: load_jobs
-- What the handlers of some jobs need. A large body is left out here and loaded when its job starts.
-- Each row is looked up by its key (LIMIT 1 sees to it), whatever the planner knows of the tables:
-- it would rather read all events, as long as there are few.
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
    WHERE event = j.event AND received_at = j.received_at LIMIT 1
) AS p ON true
JOIN onceward.handlers h ON h.id = j.handler
JOIN onceward.sources s ON s.id = e.source
ORDER BY leased.position

-- name: load_body
-- The body of one event.
SELECT body FROM onceward.payloads WHERE event = :event AND received_at = :received_at

-- name: renew
-- Prolong leases. Answers with those that are still held.
UPDATE onceward.leases
SET until = clock_timestamp() + :lease_seconds * interval '1 second'
WHERE token = ANY(:tokens::text[])
RETURNING token

-- name: release
-- Let go of jobs that were not started; nothing is counted.
WITH shrunk AS (
    UPDATE onceward.leases
    SET jobs = ARRAY(SELECT id FROM unnest(jobs) AS id WHERE id <> ALL(:jobs::bigint[]))
    WHERE token = :token
)
SELECT pg_notify('onceward_jobs', '')

-- name: settle_done
-- End attempts that succeeded, if the lease is still held. In the handler's transaction, last.
-- "Is not distinct" is how the settlements say "equals", so that none of them is ever planned over
-- the index of what is due, which holds the id as its last column, but over the key.
WITH fence AS MATERIALIZED (
    SELECT 1 FROM onceward.leases WHERE token = :token AND jobs @> :jobs::bigint[] FOR KEY SHARE
)
UPDATE onceward.jobs
SET status = 'done', attempts = attempts + 1, finished_at = clock_timestamp(), last_error = NULL
WHERE id = ANY(:jobs::bigint[]) AND status IS NOT DISTINCT FROM 'queued'
AND EXISTS (SELECT 1 FROM fence)
-- if began
    AND now() = :began
-- end
RETURNING 1 AS landed

-- name: settle_error
-- End an attempt that failed, if the lease is still held: queued again for later, or failed.
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
INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error)
SELECT
    id, attempts, worker, clock_timestamp() - :elapsed_seconds * interval '1 second',
    clock_timestamp(), :error
FROM settled, fence
RETURNING 1 AS landed

-- name: postpone
-- Put off a job that could not be run because of the store itself; nothing is counted.
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
-- Mark an effect as done, unless it is. Waits for another transaction that is about to.
INSERT INTO onceward.effects (job, created_at, updated_at, idempotency_key, reference, status)
SELECT :job, at, at, :key, :reference, 'succeeded' FROM clock_timestamp() AS at
ON CONFLICT ON CONSTRAINT effects_once DO NOTHING
RETURNING 1 AS is_first
