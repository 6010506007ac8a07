-- A claim runs these statements in one message, under the lock of claims: end_leases, claim, next_due. In
-- between it runs reclaim and wake_keys if it looks for lost jobs, and wake_keys if a key became free.

-- name: end_leases
-- Delete leases whose jobs are all settled.
DELETE FROM onceward.leases WHERE token = ANY(:tokens::text[])

-- name: reclaim
-- Take the jobs back from leases that have expired, or whose worker is dead. A job that ran alone is
-- blamed and loses an attempt; the delay before the next one doubles with each attempt. Jobs that ran
-- with others must run alone next time: a worker starts the jobs of a handler in the order of its
-- leases, so these are the first `slots` unsettled ones. The rest have not started.
-- A job whose attempts are used up fails, unless its handler has on_failed, which this statement cannot
-- run: the job is then queued once more, to be ended by a worker. If that one dies too, the job fails.
-- Returns the blamed jobs.
-- The first statement notes which owners of leases are gone: the lock on their number is free. A worker
-- that took its lock again is no longer dead. This transaction keeps the locks that it took, so that no
-- owner returns before the reclaim.
-- IS NOT DISTINCT FROM keeps the planner from the index of due jobs: it would read the whole backlog.
-- LIMIT 1 and = ANY() force lookups by key, as in load_jobs.
WITH owners AS MATERIALIZED (
    SELECT owner, pg_try_advisory_xact_lock_shared(:namespace::int, owner) AS is_dead
    FROM (
        SELECT DISTINCT owner FROM onceward.leases
        WHERE id >= :lease_floor::bigint AND owner NOT IN (0, :owner::int)
    ) AS o
)
UPDATE onceward.leases l
SET dead_since = CASE WHEN o.is_dead THEN clock_timestamp() END
FROM owners o
WHERE l.id >= :lease_floor::bigint AND l.owner = o.owner
AND o.is_dead <> (l.dead_since IS NOT NULL);
WITH
lost AS MATERIALIZED (
    SELECT id, token, worker, until, slots, jobs FROM onceward.leases
    WHERE id >= :lease_floor::bigint AND (
        until < clock_timestamp()
        OR dead_since < clock_timestamp() - :grace_seconds::float8 * interval '1 second'
    )
    FOR UPDATE SKIP LOCKED
),
ended AS (
    -- By id and above the floor: the index of the tokens is full of dead rows.
    UPDATE onceward.leases l SET until = '-infinity', jobs = '{}' FROM lost
    WHERE l.id = lost.id AND l.id >= :lease_floor::bigint
),
abandoned AS MATERIALIZED (
    SELECT
        j.id, j.solo, lost.worker, LEAST(lost.until, clock_timestamp()) AS died_at,
        row_number() OVER (PARTITION BY lost.worker, j.handler ORDER BY lost.id, leased.position)
            <= lost.slots AS may_have_started,
        CASE
            WHEN j.giving_up AND j.attempts >= j.max_attempts THEN 'fail_in_on_failed'
            WHEN j.attempts + 1 < j.max_attempts THEN 'retry'
            WHEN (SELECT has_on_failed FROM onceward.handlers WHERE id = j.handler) THEN 'give_up'
            ELSE 'fail'
        END AS next
    FROM lost
    CROSS JOIN LATERAL unnest(lost.jobs) WITH ORDINALITY AS leased (id, position)
    CROSS JOIN LATERAL (
        SELECT id, handler, solo, giving_up, attempts, max_attempts FROM onceward.jobs
        WHERE id = leased.id AND status IS NOT DISTINCT FROM 'queued'
        LIMIT 1
    ) AS j
),
returned AS (
    -- The status is checked again: the job may have been settled since the snapshot.
    UPDATE onceward.jobs j
    SET solo = a.may_have_started, available_at = clock_timestamp()
    FROM abandoned a
    WHERE j.id = a.id AND j.id = ANY(ARRAY(SELECT id FROM abandoned))
    AND j.status IS NOT DISTINCT FROM 'queued' AND NOT a.solo
),
blamed AS (
    UPDATE onceward.jobs j
    SET attempts = j.attempts + (a.next <> 'fail_in_on_failed')::int,
        status = CASE WHEN a.next IN ('retry', 'give_up') THEN 'queued' ELSE 'failed' END,
        failure_type = CASE WHEN a.next IN ('retry', 'give_up') THEN NULL ELSE 'exhausted' END,
        finished_at = CASE WHEN a.next IN ('retry', 'give_up') THEN NULL ELSE clock_timestamp() END,
        giving_up = a.next = 'give_up',
        available_at = clock_timestamp() + CASE a.next WHEN 'retry' THEN interval '1 second' * LEAST(
            :base_seconds::float8 * (1::bigint << LEAST(j.attempts, 40)), :max_seconds::float8
        ) ELSE interval '0' END,
        last_error = CASE a.next WHEN 'fail_in_on_failed' THEN :died_again::text ELSE :error::text END
    FROM abandoned a
    WHERE j.id = a.id AND j.id = ANY(ARRAY(SELECT id FROM abandoned))
    AND j.status IS NOT DISTINCT FROM 'queued' AND a.solo
    RETURNING j.id, j.event, j.handler, j.status, j.attempts, j.max_attempts, a.worker, a.died_at
),
noted AS (
    INSERT INTO onceward.attempts (job, number, worker, started_at, ended_at, error)
    SELECT id, attempts, worker, died_at, clock_timestamp(), :error::text
    FROM blamed
    ON CONFLICT (job, number) DO NOTHING
)
SELECT b.id, h.name AS handler, s.name AS source, e.event_id, b.status, b.attempts, b.max_attempts
FROM blamed b
JOIN onceward.handlers h ON h.id = b.handler
CROSS JOIN LATERAL (SELECT source, event_id FROM onceward.events WHERE id = b.event LIMIT 1) AS e
JOIN onceward.sources s ON s.id = e.source

-- name: wake_keys
-- Wake the next job of each key that may have become free: of jobs that were settled, and of leases
-- that were reclaimed, which are then deleted. The claim checks again whether a job may run.
WITH freed AS MATERIALIZED (
    SELECT DISTINCT j.handler, j.ordering_key
    FROM (
        SELECT unnest(:settled::bigint[]) AS id
        UNION ALL
        SELECT unnest(guarded) FROM onceward.leases
        WHERE id >= :lease_floor::bigint AND until = '-infinity'
    ) AS over
    CROSS JOIN LATERAL (
        SELECT handler, ordering_key FROM onceward.jobs
        WHERE id = over.id AND ordering_key IS NOT NULL
        LIMIT 1
    ) AS j
),
woken AS MATERIALIZED (
    SELECT first.id
    FROM freed
    JOIN onceward.handlers h ON h.id = freed.handler
    CROSS JOIN LATERAL (
        SELECT id, parked FROM onceward.jobs
        WHERE handler = freed.handler AND ordering_key = freed.ordering_key
        AND ordering_key IS NOT NULL AND status IN ('queued', 'failed')
        AND (status = 'queued' OR h.holds_key AND failure_type IS DISTINCT FROM 'held')
        ORDER BY event
        LIMIT 1
    ) AS first
    WHERE first.parked
)
UPDATE onceward.jobs SET parked = false, available_at = clock_timestamp()
WHERE id = ANY(ARRAY(SELECT id FROM woken)) AND status IS NOT DISTINCT FROM 'queued';
DELETE FROM onceward.leases WHERE id >= :lease_floor::bigint AND until = '-infinity'

-- name: claim
-- Lease due jobs: a share for each handler that has some, fresh jobs before those that came back, and of
-- a key only its first job while none is in flight. Jobs that it finds but that must wait for their key
-- or their source are parked.
-- A floor is a time before which a handler has no due jobs. Without floors, a claim would read the index
-- entries of all jobs that were settled since the oldest snapshot. A job that comes back is due from now
-- on, above every floor; one that was committed late is found by the claim without floors.
WITH
clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
    WHERE true
    -- use known_schema
),
leased AS MATERIALIZED (
    SELECT unnest(jobs) AS id FROM onceward.leases WHERE id >= :lease_floor::bigint
),
in_flight AS MATERIALIZED (
    SELECT j.handler, j.ordering_key
    FROM onceward.leases l
    CROSS JOIN LATERAL unnest(l.guarded) AS guarded (id)
    CROSS JOIN LATERAL (
        SELECT handler, ordering_key, status FROM onceward.jobs WHERE id = guarded.id LIMIT 1
    ) AS j
    WHERE l.id >= :lease_floor::bigint AND guarded.id = ANY(l.jobs)
    AND j.status IS NOT DISTINCT FROM 'queued'
),
paused_sources AS MATERIALIZED (
    SELECT id FROM onceward.sources WHERE paused_at IS NOT NULL
),
mine AS MATERIALIZED (
    SELECT
        m.handler, m.position, ARRAY[m.fresh_floor, m.retried_floor] AS floors, h.holds_key,
        h.concurrency IS NOT NULL AS is_capped, h.rate_interval_seconds,
        CASE WHEN h.paused_at IS NULL THEN GREATEST(0, LEAST(
            m.wanted,
            h.concurrency - (SELECT count(*) FROM in_flight f WHERE f.handler = h.id),
            floor(
                GREATEST(1, :burst_seconds::float8 / h.rate_interval_seconds) + 1e-6
                - GREATEST(0, EXTRACT(EPOCH FROM r.used_until - clock.now)) / h.rate_interval_seconds
            )
        )) ELSE 0 END::int AS allowed,
        -- Jobs that cannot run yet must not hide those that can.
        CASE WHEN h.ordering_key IS NOT NULL OR EXISTS (SELECT 1 FROM paused_sources)
            THEN :min_look::int ELSE 0 END AS min_look
    FROM clock
    CROSS JOIN unnest(
        :handlers::int[], :wanted::int[], :fresh_floors::timestamptz[], :retried_floors::timestamptz[]
    ) WITH ORDINALITY AS m (handler, wanted, fresh_floor, retried_floor, position)
    JOIN onceward.handlers h ON h.id = m.handler
    LEFT JOIN onceward.rates r ON r.handler = h.id AND h.rate_interval_seconds IS NOT NULL
),
seen AS MATERIALIZED (
    SELECT mine.position, mine.handler, mine.allowed, mine.holds_key, mine.is_capped, retried, due.*
    FROM mine
    CROSS JOIN unnest(ARRAY[false, true]) AS retried
    CROSS JOIN LATERAL (
        SELECT id, event, available_at, received_at, ordering_key FROM onceward.jobs
        WHERE status = 'queued' AND NOT parked AND handler = mine.handler AND solo = :solo::boolean
        AND (attempts > 0) = retried
        AND available_at >= mine.floors[1 + retried::int]
        AND available_at <= (SELECT now FROM clock)
        AND id NOT IN (SELECT id FROM leased)
        ORDER BY available_at, id
        LIMIT CASE WHEN mine.allowed > 0 THEN GREATEST(mine.allowed, mine.min_look) ELSE 0 END
    ) AS due
),
of_paused_sources AS MATERIALIZED (
    SELECT seen.id
    FROM seen
    CROSS JOIN LATERAL (SELECT source FROM onceward.events WHERE id = seen.event LIMIT 1) AS e
    WHERE EXISTS (SELECT 1 FROM paused_sources) AND e.source IN (SELECT id FROM paused_sources)
),
heads AS MATERIALIZED (
    SELECT first.id
    FROM (
        SELECT DISTINCT handler, ordering_key, holds_key FROM seen WHERE ordering_key IS NOT NULL
    ) AS key
    CROSS JOIN LATERAL (
        SELECT id, status FROM onceward.jobs
        WHERE handler = key.handler AND ordering_key = key.ordering_key
        AND ordering_key IS NOT NULL AND status IN ('queued', 'failed')
        AND (status = 'queued' OR key.holds_key AND failure_type IS DISTINCT FROM 'held')
        ORDER BY event
        LIMIT 1
    ) AS first
    WHERE first.status = 'queued' AND (key.handler, key.ordering_key) NOT IN (
        SELECT handler, ordering_key FROM in_flight WHERE ordering_key IS NOT NULL
    )
),
blocked AS MATERIALIZED (
    SELECT id FROM of_paused_sources
    UNION
    SELECT id FROM seen WHERE ordering_key IS NOT NULL AND id NOT IN (SELECT id FROM heads)
),
behind_calls AS MATERIALIZED (
    -- The outside call of an earlier job of the key, which failed or was cancelled, may be under way.
    SELECT seen.id, max(call.deadline_at) AS deadline_at
    FROM (
        SELECT j.handler, j.ordering_key, e.deadline_at
        FROM onceward.effects e
        CROSS JOIN LATERAL (
            SELECT handler, ordering_key, status FROM onceward.jobs WHERE id = e.job LIMIT 1
        ) AS j
        WHERE e.status IN ('pending', 'unknown') AND e.deadline_at > (SELECT now FROM clock)
        AND j.ordering_key IS NOT NULL AND j.status IS DISTINCT FROM 'queued'
    ) AS call
    JOIN seen USING (handler, ordering_key)
    WHERE seen.id NOT IN (SELECT id FROM blocked)
    GROUP BY seen.id
),
postponed AS (
    UPDATE onceward.jobs j SET available_at = c.deadline_at FROM behind_calls c
    WHERE j.id = c.id AND j.id = ANY(ARRAY(SELECT id FROM behind_calls))
    AND j.status IS NOT DISTINCT FROM 'queued'
),
parked AS (
    UPDATE onceward.jobs SET parked = true
    WHERE id = ANY(ARRAY(SELECT id FROM blocked)) AND status IS NOT DISTINCT FROM 'queued'
),
in_turn AS (
    -- Of one handler, two fresh jobs come before each that came back.
    SELECT
        ranked.*,
        row_number() OVER (
            PARTITION BY position ORDER BY place * (1 + retried::int), retried, available_at, id
        ) AS turn
    FROM (
        SELECT
            seen.*,
            row_number() OVER (PARTITION BY position, retried ORDER BY available_at, id) AS place
        FROM seen
        WHERE id NOT IN (SELECT id FROM blocked) AND id NOT IN (SELECT id FROM behind_calls)
    ) AS ranked
),
chosen AS MATERIALIZED (
    SELECT * FROM in_turn WHERE turn <= allowed ORDER BY turn, available_at, id LIMIT :limit::int
),
lease AS (
    INSERT INTO onceward.leases (token, worker, owner, slots, until, jobs, guarded)
    SELECT
        :token::text, :worker::text, :owner::int, :slots::int,
        clock_timestamp() + :lease_seconds::float8 * interval '1 second',
        array_agg(id ORDER BY turn, available_at, id),
        COALESCE(array_agg(id) FILTER (WHERE ordering_key IS NOT NULL OR is_capped), '{}')
    FROM chosen
    HAVING count(*) > 0
    RETURNING id, jobs
),
used_rates AS (
    INSERT INTO onceward.rates AS r (handler, used_until)
    SELECT
        handler, clock.now + mine.rate_interval_seconds * count(*) * interval '1 second'
    FROM chosen JOIN mine USING (handler), clock
    WHERE mine.rate_interval_seconds IS NOT NULL
    GROUP BY handler, mine.rate_interval_seconds, clock.now
    ON CONFLICT (handler) DO UPDATE
    SET used_until = GREATEST(r.used_until, (SELECT now FROM clock))
        + (EXCLUDED.used_until - (SELECT now FROM clock))
),
oldest AS (
    SELECT position, retried, min(available_at) AS available_at FROM seen GROUP BY position, retried
)
SELECT
    (SELECT jobs FROM lease) AS jobs, EXISTS (SELECT 1 FROM chosen) AS has_jobs,
    EXISTS (SELECT 1 FROM blocked) AS has_parked,
    (SELECT min(received_at) FROM chosen) AS oldest, (SELECT max(received_at) FROM chosen) AS newest,
    COALESCE(
        (SELECT min(id) FROM onceward.leases WHERE id >= :lease_floor::bigint),
        (SELECT id FROM lease), :lease_floor::bigint
    ) AS lease_floor,
    array_agg(floor.at ORDER BY mine.position) FILTER (WHERE NOT lane.retried) AS fresh_floors,
    array_agg(floor.at ORDER BY mine.position) FILTER (WHERE lane.retried) AS retried_floors
FROM mine
CROSS JOIN unnest(ARRAY[false, true]) AS lane (retried)
LEFT JOIN oldest ON oldest.position = mine.position AND oldest.retried = lane.retried
CROSS JOIN LATERAL (
    -- LEAST() passes over a NULL. A handler that was not looked at keeps its floors.
    SELECT CASE WHEN mine.allowed > 0 THEN LEAST(
        oldest.available_at,
        (SELECT now FROM clock) - :late_seconds::float8 * interval '1 second'
    ) ELSE mine.floors[1 + lane.retried::int] END AS at
) AS floor

-- name: next_due
-- Whether a job that must run alone is due, and the time until the next claim: a job becomes due, a rate
-- allows another job, or a worker may have died. Jobs that are due and wait all the same are not counted:
-- the worker looks for them at its own pace.
WITH
clock AS MATERIALIZED (
    SELECT clock_timestamp() AS now
),
mine AS MATERIALIZED (
    SELECT h.id AS handler, h.rate_interval_seconds
    FROM unnest(:handlers::int[]) AS handler
    JOIN onceward.handlers h ON h.id = handler
    WHERE h.paused_at IS NULL
),
next AS (
    SELECT soonest.available_at
    FROM mine
    CROSS JOIN unnest(ARRAY[false, true]) AS solo
    CROSS JOIN unnest(ARRAY[false, true]) AS retried
    CROSS JOIN LATERAL (
        SELECT available_at FROM onceward.jobs
        WHERE status = 'queued' AND NOT parked AND handler = mine.handler AND solo = solo.solo
        AND (attempts > 0) = retried AND available_at > (SELECT now FROM clock)
        ORDER BY available_at, id
        LIMIT 1
    ) AS soonest
    UNION ALL
    SELECT r.used_until - interval '1 second' * (
        GREATEST(1, :burst_seconds::float8 / mine.rate_interval_seconds) - 1
    ) * mine.rate_interval_seconds
    FROM mine
    JOIN onceward.rates r ON r.handler = mine.handler AND r.used_until > (SELECT now FROM clock)
    WHERE mine.rate_interval_seconds IS NOT NULL
    UNION ALL
    -- Whether another worker has died is looked at every second, and again after the grace. A settlement
    -- may lock the lease of a dead worker for a moment longer.
    SELECT CASE WHEN dead_since IS NULL
        THEN (SELECT now FROM clock) + :watch_seconds::float8 * interval '1 second'
        ELSE GREATEST(
            dead_since + :grace_seconds::float8 * interval '1 second',
            (SELECT now FROM clock) + interval '0.2 second'
        ) END
    FROM onceward.leases WHERE id >= :lease_floor::bigint AND owner NOT IN (0, :owner::int)
)
SELECT
    EXISTS (
        SELECT 1
        FROM mine
        CROSS JOIN unnest(ARRAY[false, true]) AS retried
        CROSS JOIN LATERAL (
            SELECT id FROM onceward.jobs
            WHERE status = 'queued' AND NOT parked AND handler = mine.handler AND solo
            AND (attempts > 0) = retried AND available_at <= (SELECT now FROM clock)
            AND id NOT IN (
                SELECT unnest(jobs) FROM onceward.leases WHERE id >= :lease_floor::bigint
            )
            LIMIT 1
        ) AS waiting
    ) AS solo_waiting,
    EXTRACT(EPOCH FROM min(available_at) - (SELECT now FROM clock))::float8 AS next_due_seconds
FROM next

-- name: load_jobs
-- The data for the handlers of some jobs. A large body is loaded when its job starts.
-- LIMIT 1 forces a lookup by key, and = ANY() does so in an UPDATE. While the tables are small the planner
-- would rather read them whole, and the connection keeps its plan.
-- `within_weeks` replaces the bounds, so that the plan has the partitions of the jobs alone: a plan
-- locks all of its partitions whenever it runs.
SELECT
    j.id, h.name AS handler, j.attempts, j.max_attempts, j.event, s.name AS source, e.event_id,
    e.type, e.reference, e.received_at,
    COALESCE(p.headers, '{}'::bytea) AS headers,
    CASE WHEN octet_length(p.body) <= :inline_bytes THEN p.body END AS body, j.ordering_key,
    j.even_if_stale, j.even_if_stale_at,
    j.giving_up AND j.attempts >= j.max_attempts AS gives_up
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
-- Extend leases, and return those that are still held and the jobs that were cancelled. The worker is
-- alive, whether or not a session stands for it.
WITH renewed AS (
    UPDATE onceward.leases
    SET until = clock_timestamp() + :lease_seconds * interval '1 second', owner = :owner,
        dead_since = NULL
    WHERE token = ANY(:tokens::text[])
    RETURNING token
)
SELECT
    ARRAY(SELECT token FROM renewed) AS held,
    ARRAY(
        SELECT id FROM onceward.jobs WHERE id = ANY(:jobs::bigint[]) AND texteq(status, 'cancelled')
    ) AS cancelled

-- name: release
-- Release jobs that were not started, without counting an attempt.
-- They are due from now on, above the floors of every claim.
WITH
fence AS MATERIALIZED (
    SELECT jobs FROM onceward.leases
    WHERE token = :token AND jobs && :jobs::bigint[]
    FOR NO KEY UPDATE
),
kept AS (
    UPDATE onceward.leases l
    SET jobs = ARRAY(SELECT id FROM unnest(l.jobs) AS id WHERE id <> ALL(:jobs::bigint[]))
    FROM fence
    WHERE l.token = :token
),
returned AS (
    UPDATE onceward.jobs SET available_at = clock_timestamp()
    WHERE id = ANY(:jobs::bigint[]) AND texteq(status, 'queued')
    AND id IN (SELECT unnest(jobs) FROM fence)
)
SELECT pg_notify('onceward_jobs', '')
