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
SELECT function FROM onceward_effects WHERE idempotency_key = :key
