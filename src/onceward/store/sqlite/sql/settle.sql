-- How attempts end. Each statement is fenced by the lease.

-- name: settle_done
-- Settle attempts that succeeded, if the lease is still held. Last in the handler's transaction.
UPDATE onceward_jobs
SET status = 'done', attempts = attempts + 1, finished_at = :now, last_error = NULL,
    even_if_stale = 0
WHERE id IN (SELECT value FROM json_each(:jobs)) AND status = 'queued' AND id IN (
    SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased WHERE l.token = :token
)
RETURNING 1 AS landed

-- name: settle_error
-- Settle an attempt that failed, if the lease is still held: queue the job again, or fail it. A job that
-- would wait for the outcome of an effect is queued if the outcome became known meanwhile.
UPDATE onceward_jobs
SET status = CASE WHEN is_queued THEN 'queued' ELSE :status END, attempts = attempts + 1, solo = 0,
    available_at = :now + CAST(:delay_seconds * 1000000 AS INTEGER),
    failure_type = CASE WHEN NOT is_queued THEN :failure_type END, last_error = :error,
    effect = CASE WHEN NOT is_queued THEN :effect END,
    finished_at = CASE WHEN NOT is_queued THEN :now END
FROM (
    SELECT :status = 'queued' OR EXISTS (
        SELECT 1 FROM onceward_effects e
        WHERE e.id = :effect AND e.status IN ('succeeded', 'failed')
    ) AS is_queued
) AS settlement
WHERE id = :job AND status = 'queued' AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
);
INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error, traceback)
SELECT
    j.id, j.attempts, l.worker, :now - CAST(:elapsed_seconds * 1000000 AS INTEGER), :now, :error,
    :traceback
FROM onceward_jobs j, onceward_leases l
WHERE changes() = 1 AND j.id = :job AND l.token = :token
ON CONFLICT (job, number) DO UPDATE SET number = number;  -- unlike DO NOTHING, a change
UPDATE onceward_leases
SET jobs = (SELECT json_group_array(value) FROM json_each(onceward_leases.jobs) WHERE value <> :job)
WHERE changes() = 1 AND token = :token
RETURNING 1 AS landed

-- name: settle_failed
-- Fail a job in the transaction of its on_failed, if the lease is still held and the outcome of the
-- effect that it would wait for is still unknown. Last in that transaction, as settle_done.
UPDATE onceward_jobs
SET status = 'failed', attempts = attempts + :counted, solo = 0, giving_up = 0,
    failure_type = :failure_type, last_error = :error, effect = :effect, available_at = :now,
    finished_at = :now
WHERE id = :job AND status = 'queued' AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
)
AND NOT EXISTS (
    SELECT 1 FROM onceward_effects e WHERE e.id = :effect AND e.status IN ('succeeded', 'failed')
);
INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error, traceback)
SELECT
    j.id, j.attempts, l.worker, :now - CAST(:elapsed_seconds * 1000000 AS INTEGER), :now, :error,
    :traceback
FROM onceward_jobs j, onceward_leases l
WHERE changes() = 1 AND j.id = :job AND l.token = :token
ON CONFLICT (job, number) DO NOTHING;
UPDATE onceward_leases
SET jobs = (SELECT json_group_array(value) FROM json_each(onceward_leases.jobs) WHERE value <> :job)
WHERE token = :token AND :job IN (SELECT value FROM json_each(onceward_leases.jobs))
AND (SELECT j.status FROM onceward_jobs j WHERE j.id = :job) = 'failed'
RETURNING 1 AS landed

-- name: postpone
-- Postpone a job that could not run because of the store, without counting an attempt.
UPDATE onceward_jobs
SET available_at = :now + CAST(:delay_seconds * 1000000 AS INTEGER), last_error = :error
WHERE id = :job AND status = 'queued' AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
);
UPDATE onceward_leases
SET jobs = (SELECT json_group_array(value) FROM json_each(onceward_leases.jobs) WHERE value <> :job)
WHERE changes() = 1 AND token = :token
RETURNING 1 AS landed

-- name: mark_effect
-- Mark an effect as done, unless it is done already.
INSERT INTO onceward_effects (job, created_at, updated_at, idempotency_key, reference, status)
VALUES (:job, :now, :now, :key, :reference, 'succeeded')
ON CONFLICT (idempotency_key) DO NOTHING
RETURNING 1 AS is_first
