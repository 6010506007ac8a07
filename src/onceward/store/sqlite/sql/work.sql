-- A claim runs these statements in one transaction: end_leases, claim, next_due. In between it runs
-- reclaim and wake_keys if it looks for lost jobs, and wake_keys if a key became free.

-- name: end_leases
-- Delete leases whose jobs are all settled.
DELETE FROM onceward_leases WHERE token IN (SELECT value FROM json_each(:tokens))

-- name: reclaim
-- Take the jobs back from leases that have expired, or whose worker is dead. A job that ran alone is
-- blamed and loses an attempt; the delay before the next one doubles with each attempt. Jobs that ran
-- with others must run alone next time: a worker starts the jobs of a handler in the order of its
-- leases, so these are the first `slots` unsettled ones. The rest have not started.
-- A job whose attempts are used up fails, unless its handler has on_failed, which this statement cannot
-- run: the job is then queued once more, to be ended by a worker. If that one dies too, the job fails.
-- Returns the blamed jobs.
DELETE FROM temp.onceward_abandoned;
INSERT INTO temp.onceward_abandoned (id, solo, worker, died_at, may_have_started)
SELECT
    j.id, j.solo, l.worker, min(l.until, :now),
    row_number() OVER (PARTITION BY l.worker, j.handler ORDER BY l.id, leased.key) <= l.slots
FROM onceward_leases l
CROSS JOIN json_each(l.jobs) AS leased
CROSS JOIN onceward_jobs j ON j.id = leased.value  -- CROSS JOIN fixes the order: each job by its key
WHERE l.until < :expired_before AND +j.status = 'queued';
INSERT INTO onceward_attempts (job, number, worker, started_at, ended_at, error)
SELECT j.id, j.attempts + 1, a.worker, a.died_at, :now, :error
FROM temp.onceward_abandoned a CROSS JOIN onceward_jobs j ON j.id = a.id
WHERE a.solo AND NOT (j.giving_up AND j.attempts >= j.max_attempts)
ON CONFLICT (job, number) DO NOTHING;
UPDATE onceward_jobs
SET attempts = attempts + (blamed.next <> 'fail_in_on_failed'),
    status = CASE WHEN blamed.next IN ('retry', 'give_up') THEN 'queued' ELSE 'failed' END,
    failure_type = CASE WHEN blamed.next IN ('retry', 'give_up') THEN NULL ELSE 'exhausted' END,
    finished_at = CASE WHEN blamed.next IN ('retry', 'give_up') THEN NULL ELSE :now END,
    giving_up = blamed.next = 'give_up',
    available_at = :now + CASE blamed.next WHEN 'retry' THEN
        CAST(min(:base_seconds * (1 << min(attempts, 40)), :max_seconds) * 1000000 AS INTEGER)
        ELSE 0 END,
    last_error = CASE blamed.next WHEN 'fail_in_on_failed' THEN :died_again ELSE :error END
FROM (
    SELECT
        j.id AS job,
        CASE
            WHEN j.giving_up AND j.attempts >= j.max_attempts THEN 'fail_in_on_failed'
            WHEN j.attempts + 1 < j.max_attempts THEN 'retry'
            WHEN h.has_on_failed THEN 'give_up'
            ELSE 'fail'
        END AS next
    FROM temp.onceward_abandoned a
    CROSS JOIN onceward_jobs j ON j.id = a.id
    CROSS JOIN onceward_handlers h ON h.id = j.handler
    WHERE a.solo
) AS blamed
WHERE id = blamed.job;
UPDATE onceward_jobs SET solo = a.may_have_started, available_at = :now
FROM temp.onceward_abandoned a
WHERE onceward_jobs.id = a.id AND NOT a.solo;
UPDATE onceward_leases SET until = -1 WHERE until < :expired_before;
SELECT j.id, h.name AS handler, s.name AS source, e.event_id, j.status, j.attempts, j.max_attempts
FROM temp.onceward_abandoned a
CROSS JOIN onceward_jobs j ON j.id = a.id
CROSS JOIN onceward_handlers h ON h.id = j.handler
CROSS JOIN onceward_events e ON e.id = j.event
CROSS JOIN onceward_sources s ON s.id = e.source
WHERE a.solo

-- name: wake_keys
-- Wake the next job of each key that may have become free: of jobs that were settled, and of leases
-- that were reclaimed, which are then deleted. The claim checks again whether a job may run.
UPDATE onceward_jobs SET parked = 0, available_at = :now
WHERE parked AND status = 'queued' AND id IN (
    SELECT (
        SELECT j.id FROM onceward_jobs j
        WHERE j.handler = freed.handler AND j.ordering_key = freed.ordering_key
        AND j.ordering_key IS NOT NULL AND j.status IN ('queued', 'failed')
        AND (j.status = 'queued' OR h.holds_key AND j.failure_type IS NOT 'held')
        ORDER BY j.event
        LIMIT 1
    )
    FROM (
        SELECT DISTINCT j.handler, j.ordering_key
        FROM (
            SELECT value AS id FROM json_each(:settled)
            UNION ALL
            SELECT g.value FROM onceward_leases l, json_each(l.guarded) AS g WHERE l.until = -1
        ) AS over
        CROSS JOIN onceward_jobs j ON j.id = over.id
        WHERE j.ordering_key IS NOT NULL
    ) AS freed
    JOIN onceward_handlers h ON h.id = freed.handler
);
DELETE FROM onceward_leases WHERE until = -1

-- name: claim
-- Lease due jobs: a share for each handler that has some, fresh jobs before those that came back, and of
-- a key only its first job while none is in flight. Jobs that it finds but that must wait for their key
-- or their source are parked.
DELETE FROM temp.onceward_in_flight;
INSERT INTO temp.onceward_in_flight (handler, ordering_key)
SELECT j.handler, j.ordering_key
FROM onceward_leases l
CROSS JOIN json_each(l.guarded) AS guarded
CROSS JOIN onceward_jobs j ON j.id = guarded.value
WHERE +j.status = 'queued' AND guarded.value IN (SELECT value FROM json_each(l.jobs));
DELETE FROM temp.onceward_allowed;
INSERT INTO temp.onceward_allowed (handler, position, allowed)
SELECT
    h.id, m.key,
    CASE WHEN h.paused_at IS NULL THEN max(0, min(
        json_extract(m.value, '$[1]'),
        COALESCE(
            h.concurrency - (SELECT count(*) FROM temp.onceward_in_flight f WHERE f.handler = h.id),
            :limit
        ),
        COALESCE(
            CAST(
                max(1, :burst_seconds / h.rate_interval_seconds) + 1e-6
                - max(0, COALESCE(r.used_until, 0) - :now) / 1000000.0 / h.rate_interval_seconds
                AS INTEGER
            ),
            :limit
        )
    )) ELSE 0 END
FROM json_each(:wanted) AS m
CROSS JOIN onceward_handlers h ON h.id = json_extract(m.value, '$[0]')
LEFT JOIN onceward_rates r ON r.handler = h.id;
DELETE FROM temp.onceward_seen;
INSERT INTO temp.onceward_seen
    (id, handler, position, allowed, retried, event, available_at, ordering_key, is_blocked)
SELECT
    j.id, j.handler, a.position, a.allowed, lane.value, j.event, j.available_at, j.ordering_key, 0
FROM temp.onceward_allowed a
CROSS JOIN json_each('[0, 1]') AS lane
CROSS JOIN onceward_jobs j ON j.id IN (
    SELECT due.id FROM onceward_jobs due
    WHERE due.status = 'queued' AND NOT due.parked AND due.handler = a.handler AND due.solo = :solo
    AND (due.attempts > 0) = lane.value AND due.available_at <= :now
    AND due.id NOT IN (SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased)
    ORDER BY due.available_at, due.id
    LIMIT :look
)
WHERE a.allowed > 0;
UPDATE temp.onceward_seen SET is_blocked = 1
WHERE event IN (
    SELECT e.id FROM temp.onceward_seen s CROSS JOIN onceward_events e ON e.id = s.event
    WHERE e.source IN (SELECT id FROM onceward_sources WHERE paused_at IS NOT NULL)
)
OR ordering_key IS NOT NULL AND (
    EXISTS (
        SELECT 1 FROM temp.onceward_in_flight f
        WHERE f.handler = onceward_seen.handler AND f.ordering_key = onceward_seen.ordering_key
    )
    OR id <> (
        SELECT j.id FROM onceward_jobs j
        WHERE j.handler = onceward_seen.handler AND j.ordering_key = onceward_seen.ordering_key
        AND j.ordering_key IS NOT NULL AND j.status IN ('queued', 'failed')
        AND (
            j.status = 'queued' OR j.failure_type IS NOT 'held'
            AND (SELECT h.holds_key FROM onceward_handlers h WHERE h.id = onceward_seen.handler)
        )
        ORDER BY j.event
        LIMIT 1
    )
);
UPDATE onceward_jobs SET parked = 1
WHERE id IN (SELECT id FROM temp.onceward_seen WHERE is_blocked);
-- The outside call of an earlier job of a key, which failed or was cancelled, may be under way.
UPDATE onceward_jobs SET available_at = call.deadline_at
FROM (
    SELECT s.id, max(e.deadline_at) AS deadline_at
    FROM onceward_effects e
    CROSS JOIN onceward_jobs j ON j.id = e.job
    JOIN temp.onceward_seen s ON s.handler = j.handler AND s.ordering_key = j.ordering_key
    WHERE e.status IN ('pending', 'unknown') AND e.deadline_at > :now AND +j.status <> 'queued'
    AND NOT s.is_blocked
    GROUP BY s.id
) AS call
WHERE onceward_jobs.id = call.id;
UPDATE temp.onceward_seen SET is_blocked = 1
WHERE NOT is_blocked AND EXISTS (
    SELECT 1 FROM onceward_jobs j WHERE j.id = onceward_seen.id AND j.available_at > :now
);
DELETE FROM temp.onceward_chosen;
INSERT INTO temp.onceward_chosen (id, handler, ordering_key)
SELECT id, handler, ordering_key
FROM (
    -- Of one handler, two fresh jobs come before each that came back.
    SELECT *, row_number() OVER (
        PARTITION BY position ORDER BY place * (1 + retried), retried, available_at, id
    ) AS turn
    FROM (
        SELECT *, row_number() OVER (
            PARTITION BY position, retried ORDER BY available_at, id
        ) AS place
        FROM temp.onceward_seen
        WHERE NOT is_blocked
    )
)
WHERE turn <= allowed
ORDER BY turn, available_at, id
LIMIT :limit;
INSERT INTO onceward_rates (handler, used_until)
SELECT h.id, :now + CAST(h.rate_interval_seconds * count(*) * 1000000 AS INTEGER)
FROM temp.onceward_chosen c CROSS JOIN onceward_handlers h ON h.id = c.handler
WHERE h.rate_interval_seconds IS NOT NULL
GROUP BY h.id
ON CONFLICT (handler) DO UPDATE
SET used_until = max(used_until, :now) + (excluded.used_until - :now);
INSERT INTO onceward_leases (token, worker, until, slots, jobs, guarded, id)
SELECT
    :token, :worker, :now + CAST(:lease_seconds * 1000000 AS INTEGER), :slots,
    json_group_array(c.id),
    (
        SELECT json_group_array(g.id)
        FROM temp.onceward_chosen g CROSS JOIN onceward_handlers h ON h.id = g.handler
        WHERE g.ordering_key IS NOT NULL OR h.concurrency IS NOT NULL
    ),
    (SELECT COALESCE(max(id), 0) + 1 FROM onceward_leases)
FROM (SELECT id FROM temp.onceward_chosen ORDER BY position) AS c
HAVING count(*) > 0
RETURNING jobs

-- name: next_due
-- Whether a job that must run alone is due, and the time until the next job is due. Jobs that are due
-- and wait all the same are not counted: the worker looks for them at its own pace.
SELECT
    EXISTS (
        SELECT 1
        FROM json_each(:handlers) AS m
        CROSS JOIN onceward_handlers h ON h.id = m.value AND h.paused_at IS NULL
        CROSS JOIN json_each('[0, 1]') AS lane
        CROSS JOIN onceward_jobs j ON j.handler = h.id
        WHERE j.status = 'queued' AND NOT j.parked AND j.solo = 1 AND (j.attempts > 0) = lane.value
        AND j.available_at <= :now
        AND j.id NOT IN (SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased)
    ) AS solo_waiting,
    (min(available_at) - :now) / 1000000.0 AS next_due_seconds
FROM (
    SELECT (
        SELECT min(j.available_at) FROM onceward_jobs j
        WHERE j.status = 'queued' AND NOT j.parked AND j.handler = h.id AND j.solo = solo.value
        AND (j.attempts > 0) = lane.value AND j.available_at > :now
    ) AS available_at
    FROM json_each(:handlers) AS m
    CROSS JOIN onceward_handlers h ON h.id = m.value AND h.paused_at IS NULL
    CROSS JOIN json_each('[0, 1]') AS solo
    CROSS JOIN json_each('[0, 1]') AS lane
    UNION ALL
    SELECT r.used_until - CAST(
        (max(1, :burst_seconds / h.rate_interval_seconds) - 1) * h.rate_interval_seconds * 1000000
        AS INTEGER
    )
    FROM json_each(:handlers) AS m
    CROSS JOIN onceward_handlers h ON h.id = m.value AND h.paused_at IS NULL
    CROSS JOIN onceward_rates r ON r.handler = h.id
    WHERE h.rate_interval_seconds IS NOT NULL AND r.used_until > :now
)

-- name: load_jobs
-- The data for the handlers of some jobs. A large body is loaded when its job starts.
SELECT
    j.id, h.name AS handler, j.attempts, j.max_attempts, j.event, s.name AS source, e.event_id,
    e.type, e.reference, e.received_at,
    COALESCE(p.headers, '{}') AS headers,
    CASE WHEN length(p.body) <= :inline_bytes THEN p.body END AS body, j.ordering_key,
    j.even_if_stale, j.even_if_stale_at,
    j.giving_up AND j.attempts >= j.max_attempts AS gives_up
FROM json_each(:jobs) AS leased
CROSS JOIN onceward_jobs j ON j.id = leased.value
JOIN onceward_handlers h ON h.id = j.handler
JOIN onceward_events e ON e.id = j.event
JOIN onceward_sources s ON s.id = e.source
LEFT JOIN onceward_payloads p ON p.event = j.event
ORDER BY leased.key

-- name: load_body
-- The body of one event.
SELECT body FROM onceward_payloads WHERE event = :event

-- name: renew
-- Extend leases, and return those that are still held and the jobs that were cancelled.
UPDATE onceward_leases
SET until = :now + CAST(:lease_seconds * 1000000 AS INTEGER)
WHERE token IN (SELECT value FROM json_each(:tokens));
SELECT
    (
        SELECT json_group_array(token) FROM onceward_leases
        WHERE token IN (SELECT value FROM json_each(:tokens))
    ) AS held,
    (
        SELECT json_group_array(id) FROM onceward_jobs
        WHERE id IN (SELECT value FROM json_each(:jobs)) AND +status = 'cancelled'
    ) AS cancelled

-- name: release
-- Release jobs that were not started, without counting an attempt. They are due from now on.
UPDATE onceward_jobs SET available_at = :now
WHERE status = 'queued' AND id IN (
    SELECT leased.value FROM onceward_leases l, json_each(l.jobs) AS leased WHERE l.token = :token
)
AND id IN (SELECT value FROM json_each(:jobs));
UPDATE onceward_leases
SET jobs = (
    SELECT json_group_array(value) FROM json_each(onceward_leases.jobs)
    WHERE value NOT IN (SELECT value FROM json_each(:jobs))
)
WHERE token = :token
