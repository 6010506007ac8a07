-- name: reclaim_expired
-- Delete expired leases. A job that ran alone is blamed for the death of its worker and loses an
-- attempt; the delay before the next one doubles with each attempt. Jobs that ran together are only
-- marked to run alone next time.
INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error)
SELECT j.id, j.attempts + 1, l.worker, min(l.until, :now), :now, :error
FROM onceward_leases l CROSS JOIN json_each(l.jobs) AS leased
CROSS JOIN onceward_jobs j ON j.id = leased.value  -- CROSS JOIN fixes the order: each job by its key
WHERE l.until < :expired_before AND +j.status = 'queued' AND j.solo
ON CONFLICT (job, number) DO NOTHING;
UPDATE onceward_jobs
SET attempts = attempts + 1,
    status = CASE WHEN attempts + 1 < max_attempts THEN 'queued' ELSE 'failed' END,
    failure_type = CASE WHEN attempts + 1 < max_attempts THEN NULL ELSE 'exhausted' END,
    finished_at = CASE WHEN attempts + 1 < max_attempts THEN NULL ELSE :now END,
    available_at = :now
        + CAST(min(:base_seconds * (1 << min(attempts, 40)), :max_seconds) * 1000000 AS INTEGER),
    last_error = :error
WHERE status = 'queued' AND solo AND id IN (
    SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased WHERE l.until < :expired_before
);
UPDATE onceward_jobs SET solo = 1
WHERE status = 'queued' AND id IN (
    SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased WHERE l.until < :expired_before
);
DELETE FROM onceward_leases WHERE until < :expired_before

-- name: end_leases
-- Delete leases whose jobs are all settled.
DELETE FROM onceward_leases WHERE token IN (SELECT value FROM json_each(:tokens))

-- name: claim
-- Lease the jobs that have been due for longest. Writes one lease row and no job.
INSERT INTO onceward_leases (token, worker, until, jobs)
SELECT :token, :worker, :now + CAST(:lease_seconds * 1000000 AS INTEGER), due.jobs
FROM (
    SELECT json_group_array(id) AS jobs FROM (
        SELECT id FROM onceward_jobs
        WHERE status = 'queued' AND handler IN (SELECT value FROM json_each(:handlers))
        AND solo = :solo AND available_at <= :now
        AND id NOT IN (SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased)
        ORDER BY available_at, id
        LIMIT :limit
    )
) AS due
WHERE due.jobs <> '[]'
RETURNING jobs

-- name: next_due
-- Whether a job that must run alone is due, and the time until the next job is due.
SELECT
    COALESCE(max(solo AND available_at <= :now), 0) AS solo_waiting,
    (min(available_at) - :now) / 1000000.0 AS next_due_seconds
FROM (
    SELECT solo, min(available_at) AS available_at FROM onceward_jobs
    WHERE status = 'queued' AND handler IN (SELECT value FROM json_each(:handlers))
    AND id NOT IN (SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased)
    GROUP BY handler, solo
)

-- name: load_jobs
-- The data for the handlers of some jobs. A large body is loaded when its job starts.
SELECT
    j.id, h.name AS handler, j.attempts, j.max_attempts, j.event, s.name AS source, e.event_id,
    e.type, e.reference, e.received_at,
    COALESCE(p.headers, '{}') AS headers,
    CASE WHEN length(p.body) <= :inline_bytes THEN p.body END AS body
FROM onceward_jobs j
JOIN onceward_handlers h ON h.id = j.handler
JOIN onceward_events e ON e.id = j.event
JOIN onceward_sources s ON s.id = e.source
LEFT JOIN onceward_payloads p ON p.event = j.event
WHERE j.id IN (SELECT value FROM json_each(:jobs))
ORDER BY j.available_at, j.id

-- name: load_body
-- The body of one event.
SELECT body FROM onceward_payloads WHERE event = :event

-- name: renew
-- Extend leases and return those that are still held.
UPDATE onceward_leases
SET until = :now + CAST(:lease_seconds * 1000000 AS INTEGER)
WHERE token IN (SELECT value FROM json_each(:tokens))
RETURNING token

-- name: release
-- Release jobs that were not started, without counting an attempt.
UPDATE onceward_leases
SET jobs = (
    SELECT json_group_array(value) FROM json_each(onceward_leases.jobs)
    WHERE value NOT IN (SELECT value FROM json_each(:jobs))
)
WHERE token = :token

-- name: settle_done
-- Settle attempts that succeeded, if the lease is still held. Last in the handler's transaction.
UPDATE onceward_jobs
SET status = 'done', attempts = attempts + 1, finished_at = :now, last_error = NULL
WHERE id IN (SELECT value FROM json_each(:jobs)) AND status = 'queued' AND id IN (
    SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased WHERE l.token = :token
)
RETURNING 1 AS landed

-- name: settle_error
-- Settle an attempt that failed, if the lease is still held: queue the job again, or fail it.
UPDATE onceward_jobs
SET status = :status, attempts = attempts + 1, solo = 0,
    available_at = :now + CAST(:delay_seconds * 1000000 AS INTEGER),
    failure_type = :failure_type, last_error = :error,
    finished_at = CASE WHEN :status = 'queued' THEN NULL ELSE :now END
WHERE id = :job AND status = 'queued' AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
);
INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error, traceback)
SELECT
    j.id, j.attempts, l.worker, :now - CAST(:elapsed_seconds * 1000000 AS INTEGER), :now, :error,
    :traceback
FROM onceward_jobs j, onceward_leases l
WHERE changes() = 1 AND j.id = :job AND l.token = :token;
UPDATE onceward_leases
SET jobs = (SELECT json_group_array(value) FROM json_each(onceward_leases.jobs) WHERE value <> :job)
WHERE changes() = 1 AND token = :token
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
