-- name: unsettled
-- Whether jobs that were settled as done are still queued, under a lease that is held: a trigger
-- discarded the update.
SELECT EXISTS (
    SELECT 1 FROM onceward_jobs j
    JOIN onceward_leases l ON l.token = :token
    JOIN json_each(l.jobs) AS leased ON leased.value = j.id
    WHERE j.id IN (SELECT value FROM json_each(:jobs)) AND +j.status = 'queued'
) AS is_altered

-- name: marked_effect
-- The mark of an effect, if there is one.
SELECT function, COALESCE(used_at, updated_at) < :now - 86400000000 AS is_untouched
FROM onceward_effects WHERE idempotency_key = :key

-- name: touch_effect
-- Store that a key was used, without a change: once a day at most.
UPDATE onceward_effects SET used_at = :now WHERE idempotency_key = :key
