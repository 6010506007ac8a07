-- name: start_call
-- Commit the intent of a call, if the lease still names the job: of a new effect, or of one whose calls
-- were certainly not applied. FOR SHARE waits for a cancel, which takes the job from the lease.
WITH
fence AS MATERIALIZED (
    SELECT 1 FROM onceward.leases
    WHERE token = :token AND :job::bigint = ANY(jobs)
    FOR SHARE
),
clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
INSERT INTO onceward.effects AS e (
    job, created_at, updated_at, first_call_at, deadline_at, idempotency_key, reference, status, call_no,
    function, nonce
)
SELECT
    j.id, now, now, now, now + :timeout_seconds::float8 * interval '1 second', :key, :reference,
    'pending', 1, :function, :nonce
FROM clock, onceward.jobs j
WHERE j.id = :job AND j.status IS NOT DISTINCT FROM 'queued' AND EXISTS (SELECT 1 FROM fence)
ON CONFLICT ON CONSTRAINT effects_once DO UPDATE
SET status = 'pending', call_no = e.call_no + 1, job = excluded.job, nonce = excluded.nonce,
    deadline_at = excluded.deadline_at, updated_at = excluded.updated_at, error_message = NULL
WHERE e.status = 'failed' AND e.function = excluded.function
RETURNING
    id, call_no, status, function, result, error_message,
    :timeout_seconds::float8 AS seconds_left,
    EXTRACT(EPOCH FROM updated_at - first_call_at)::float8 AS seconds_since_first

-- name: restart_call
-- Commit the intent of another call over one whose outcome was unknown, if it is still the last one and
-- past its deadline. Within a window, the new call ends with it at the latest: after it the other side no
-- longer recognises the key.
WITH
fence AS MATERIALIZED (
    SELECT 1 FROM onceward.leases
    WHERE token = :token AND :job::bigint = ANY(jobs)
    FOR SHARE
),
clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
)
UPDATE onceward.effects e
SET status = 'pending', call_no = e.call_no + 1, job = j.id, nonce = :nonce, updated_at = now,
    error_message = NULL, doubt = :window_seconds::float8 IS NOT NULL,
    deadline_at = LEAST(
        now + :timeout_seconds::float8 * interval '1 second',
        e.first_call_at + :window_seconds::float8 * interval '1 second'
    )
FROM clock, onceward.jobs j
WHERE e.id = :id AND e.call_no = :call_no AND COALESCE(e.status, '') IN ('pending', 'unknown')
AND e.deadline_at <= now
AND (
    :window_seconds::float8 IS NULL
    OR now < e.first_call_at + :window_seconds::float8 * interval '1 second'
)
AND j.id = :job AND j.status IS NOT DISTINCT FROM 'queued' AND EXISTS (SELECT 1 FROM fence)
RETURNING
    e.id, e.call_no, e.status, e.function, e.result, e.error_message,
    EXTRACT(EPOCH FROM e.deadline_at - e.updated_at)::float8 AS seconds_left,
    EXTRACT(EPOCH FROM e.updated_at - e.first_call_at)::float8 AS seconds_since_first

-- name: load_call
-- The last call of an effect, and whether the lease still names the job. The columns of an effect that
-- does not exist are NULL.
SELECT
    e.id, e.call_no, e.status, e.function, e.result, e.error_message,
    COALESCE(EXTRACT(EPOCH FROM e.deadline_at - clock_timestamp()), 0)::float8 AS seconds_left,
    COALESCE(EXTRACT(EPOCH FROM clock_timestamp() - e.first_call_at), 0)::float8
        AS seconds_since_first,
    COALESCE(e.used_at, e.updated_at) < clock_timestamp() - interval '1 day' AS is_untouched,
    EXISTS (
        SELECT 1 FROM onceward.leases WHERE token = :token AND :job::bigint = ANY(jobs)
    ) AS is_leased
FROM (SELECT 1) AS one
LEFT JOIN onceward.effects e ON e.idempotency_key = :key

-- name: lock_effect
-- An effect, for a person's answer.
SELECT
    call_no, status, function, error_message,
    COALESCE(EXTRACT(EPOCH FROM deadline_at - clock_timestamp()), 0)::float8 AS seconds_left
FROM onceward.effects WHERE id = :id
FOR UPDATE

-- name: requeue_waiting
-- Queue the jobs that failed because the outcome of an effect was unknown, and record it for each.
WITH
requeued AS (
    UPDATE onceward.jobs j
    SET status = 'queued', failure_type = NULL, parked = false, effect = NULL,
        max_attempts = LEAST(j.attempts::bigint + h.max_attempts, 2147483647),
        available_at = clock_timestamp(), finished_at = NULL
    FROM onceward.handlers h
    WHERE h.id = j.handler AND j.effect = :id AND j.status = 'failed'
    AND j.failure_type = 'unknown_outcome'
    RETURNING j.id
),
entries AS (
    INSERT INTO onceward.audit (at, actor, authenticated_as, action, reason, subject)
    SELECT clock_timestamp(), :actor, :authenticated_as, 'manual_requeue', :reason, 'job:' || id
    FROM requeued
)
SELECT CAST(id AS text) AS id FROM requeued ORDER BY requeued.id
