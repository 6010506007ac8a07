-- Old rows, page by page in the order of their ids. A page ends at :last, so that a statement finds its
-- rows by a range of ids. Each statement deletes rows, or with the condition dry_run finds those that it
-- would delete.
-- Ids grow with time, so that the search ends with a page that has nothing old. A page from a time that
-- is still to come was recorded while a clock was wrong, and says nothing about those that follow.

-- name: rejections_range
-- The end of a page of rejections, and whether old rows may be in it or after it.
SELECT
    max(id) AS last, count(*) AS rows,
    min(received_at) < :before OR min(received_at) > :now AS may_precede_old
FROM (
    SELECT id, received_at FROM onceward.rejections WHERE id > :after ORDER BY id LIMIT :limit
) AS page

-- name: purge_rejections
-- Delete rejections that were not repeated for long.
-- if dry_run
SELECT id
-- end
-- if purge
DELETE
-- end
FROM onceward.rejections WHERE id > :after AND id <= :last AND last_at < :before
-- if purge
RETURNING id
-- end

-- name: deliveries_range
-- The end of a page of redeliveries, and whether old rows may be in it or after it.
SELECT
    max(id) AS last, count(*) AS rows,
    min(received_at) < :before OR min(received_at) > :now AS may_precede_old
FROM (
    SELECT id, received_at FROM onceward.deliveries WHERE id > :after ORDER BY id LIMIT :limit
) AS page

-- name: purge_deliveries
-- Delete redeliveries. Their event still counts them.
-- if dry_run
SELECT id
-- end
-- if purge
DELETE
-- end
FROM onceward.deliveries WHERE id > :after AND id <= :last AND received_at < :before
-- if purge
RETURNING id
-- end

-- name: attempts_range
-- The end of a page of failed attempts, by job, and whether old rows may be in it or after it.
SELECT
    max(job) AS last, count(*) AS rows,
    min(ended_at) < :before OR min(ended_at) > :now AS may_precede_old
FROM (
    SELECT job, ended_at FROM onceward.attempts WHERE job > :after ORDER BY job LIMIT :limit
) AS page

-- name: purge_attempts
-- Delete failed attempts of jobs that are over. Those of queued and failed jobs explain their state.
-- if dry_run
SELECT job
-- end
-- if purge
DELETE
-- end
FROM onceward.attempts WHERE job > :after AND job <= :last AND ended_at < :before AND job NOT IN (
    SELECT j.id FROM onceward.jobs j
    WHERE j.id > :after AND j.id <= :last AND j.status IN ('queued', 'failed')
)
-- if purge
RETURNING job
-- end

-- name: jobs_range
-- The end of a page of jobs, and whether old rows may be in it or after it.
SELECT
    max(id) AS last, count(*) AS rows,
    min(created_at) < :before OR min(created_at) > :now AS may_precede_old
FROM (SELECT id, created_at FROM onceward.jobs WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: effects_range
-- The end of a page of effects, and whether old rows may be in it or after it.
SELECT
    max(id) AS last, count(*) AS rows,
    min(created_at) < :before OR min(created_at) > :now AS may_precede_old
FROM (SELECT id, created_at FROM onceward.effects WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: purge_effects
-- Delete effects whose key was not used for long. Those without a known outcome stay.
-- if dry_run
SELECT id
-- end
-- if purge
DELETE
-- end
FROM onceward.effects
WHERE id > :after AND id <= :last AND status IN ('succeeded', 'failed')
AND updated_at < :before AND COALESCE(used_at, updated_at) < :before
-- if purge
RETURNING id
-- end

-- name: events_range
-- The end of a page of events, and whether old rows may be in it or after it.
SELECT
    max(id) AS last, count(*) AS rows,
    min(received_at) < :before OR min(received_at) > :now AS may_precede_old
FROM (SELECT id, received_at FROM onceward.events WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: unfinished_jobs
-- The oldest jobs that may still run, of events from before a time. One branch for each partial index.
SELECT j.id, h.name AS handler, j.status, j.received_at
FROM (
    SELECT id, handler, status, received_at FROM onceward.jobs
    WHERE status = 'queued' AND NOT parked AND received_at < :before
    UNION ALL SELECT id, handler, status, received_at FROM onceward.jobs
    WHERE status = 'queued' AND parked AND received_at < :before
    UNION ALL SELECT id, handler, status, received_at FROM onceward.jobs
    WHERE status = 'failed' AND received_at < :before
) AS j
JOIN onceward.handlers h ON h.id = j.handler
ORDER BY j.received_at, j.id
LIMIT :limit

-- name: clock
-- The time of the ledger.
SELECT :now AS now_at

-- name: payloads_range
-- The end of a page of payloads, and whether old rows may be in it or after it.
SELECT
    max(event) AS last, count(*) AS rows,
    min(received_at) < :before OR min(received_at) > :now AS may_precede_old
FROM (
    SELECT event, received_at FROM onceward.payloads WHERE event > :after ORDER BY event LIMIT :limit
) AS page

-- name: purge_payloads
-- Delete the payloads of a time that neither a queued or failed job nor a person who reviews needs.
DELETE FROM onceward.payloads
WHERE event > :after AND event <= :last AND received_at >= :start AND received_at < :before
AND event NOT IN (
    SELECT j.event FROM onceward.jobs j
    WHERE j.event > :after AND j.event <= :last AND j.status IN ('queued', 'failed')
    UNION SELECT id FROM onceward.events
    WHERE id > :after AND id <= :last AND final_state = 'review'
)
RETURNING event

-- name: count_payloads
-- The payloads of a time, and those of them that a queued or failed job, or a review, needs.
SELECT
    count(*) AS rows,
    count(*) FILTER (WHERE event IN (
        SELECT j.event FROM onceward.jobs j
        WHERE j.status IN ('queued', 'failed') AND j.received_at >= :start AND j.received_at < :before
        UNION SELECT id FROM onceward.events
        WHERE final_state = 'review' AND received_at >= :start AND received_at < :before
    )) AS needed
FROM onceward.payloads WHERE received_at >= :start AND received_at < :before

-- name: unneeded_payloads
-- When the payloads of a page were received that are from before a time and that nothing needs.
SELECT received_at FROM onceward.payloads
WHERE event > :after AND event <= :last AND received_at < :before
AND event NOT IN (
    SELECT j.event FROM onceward.jobs j
    WHERE j.event > :after AND j.event <= :last AND j.status IN ('queued', 'failed')
    UNION SELECT id FROM onceward.events
    WHERE id > :after AND id <= :last AND final_state = 'review'
)
