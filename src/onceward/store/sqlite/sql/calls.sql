-- name: start_call
-- Commit the intent of a call, if the lease still names the job: of a new effect, or of one whose calls
-- were certainly not applied.
INSERT INTO onceward_effects (
    job, created_at, updated_at, first_call_at, deadline_at, idempotency_key, reference, status, call_no,
    function, nonce
)
SELECT
    j.id, :now, :now, :now, :now + CAST(:timeout_seconds * 1000000 AS INTEGER), :key, :reference,
    'pending', 1, :function, :nonce
FROM onceward_jobs j
WHERE j.id = :job AND +j.status = 'queued' AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
)
ON CONFLICT (idempotency_key) DO UPDATE
SET status = 'pending', call_no = call_no + 1, job = excluded.job, nonce = excluded.nonce,
    deadline_at = excluded.deadline_at, updated_at = excluded.updated_at, error_message = NULL
WHERE status = 'failed' AND function = excluded.function
RETURNING
    id, call_no, status, function, result, error_message, :timeout_seconds AS seconds_left,
    (updated_at - first_call_at) / 1000000.0 AS seconds_since_first

-- name: restart_call
-- Commit the intent of another call over one whose outcome was unknown, if it is still the last one and
-- past its deadline. Within a window, the new call ends with it at the latest: after it the other side no
-- longer recognises the key.
UPDATE onceward_effects
SET status = 'pending', call_no = call_no + 1, job = :job, nonce = :nonce, updated_at = :now,
    error_message = NULL, doubt = :window_seconds IS NOT NULL,
    deadline_at = min(
        :now + CAST(:timeout_seconds * 1000000 AS INTEGER),
        COALESCE(
            first_call_at + CAST(:window_seconds * 1000000 AS INTEGER),
            :now + CAST(:timeout_seconds * 1000000 AS INTEGER)
        )
    )
WHERE id = :id AND call_no = :call_no AND status IN ('pending', 'unknown') AND deadline_at <= :now
AND (
    :window_seconds IS NULL
    OR :now < first_call_at + CAST(:window_seconds * 1000000 AS INTEGER)
)
AND EXISTS (SELECT 1 FROM onceward_jobs j WHERE j.id = :job AND +j.status = 'queued')
AND EXISTS (
    SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
    WHERE l.token = :token AND leased.value = :job
)
RETURNING
    id, call_no, status, function, result, error_message,
    (deadline_at - updated_at) / 1000000.0 AS seconds_left,
    (updated_at - first_call_at) / 1000000.0 AS seconds_since_first

-- name: load_call
-- The last call of an effect, and whether the lease still names the job. The columns of an effect that
-- does not exist are NULL.
SELECT
    e.id, e.call_no, e.status, e.function, e.result, e.error_message,
    COALESCE((e.deadline_at - :now) / 1000000.0, 0.0) AS seconds_left,
    COALESCE((:now - e.first_call_at) / 1000000.0, 0.0) AS seconds_since_first,
    COALESCE(e.used_at, e.updated_at) < :now - 86400000000 AS is_untouched,
    EXISTS (
        SELECT 1 FROM onceward_leases l, json_each(l.jobs) AS leased
        WHERE l.token = :token AND leased.value = :job
    ) AS is_leased
FROM (SELECT 1) AS one
LEFT JOIN onceward_effects e ON e.idempotency_key = :key

-- name: lock_effect
-- An effect, for a person's answer.
SELECT
    call_no, status, function, error_message,
    COALESCE((deadline_at - :now) / 1000000.0, 0.0) AS seconds_left
FROM onceward_effects WHERE id = :id

-- name: requeue_waiting
-- Queue the jobs that failed because the outcome of an effect was unknown, and record it for each.
INSERT INTO onceward_audit (at, actor, authenticated_as, action, reason, subject)
SELECT :now, :actor, :authenticated_as, 'manual_requeue', :reason, 'job:' || id
FROM onceward_jobs
WHERE effect = :id AND status = 'failed' AND failure_type = 'unknown_outcome';
UPDATE onceward_jobs
SET status = 'queued', failure_type = NULL, parked = 0, effect = NULL,
    max_attempts = min(
        attempts + (SELECT h.max_attempts FROM onceward_handlers h WHERE h.id = handler), 2147483647
    ),
    available_at = :now, finished_at = NULL
WHERE effect = :id AND status = 'failed' AND failure_type = 'unknown_outcome'
RETURNING CAST(id AS text) AS id
