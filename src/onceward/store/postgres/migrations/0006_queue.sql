-- The rules of each handler's queue, and who is paused.
ALTER TABLE onceward.handlers
    ADD COLUMN ordering_key text,                        -- a path into the payload
    ADD COLUMN holds_key boolean NOT NULL DEFAULT true,  -- whether a failed job holds up its key
    ADD COLUMN concurrency integer,
    ADD COLUMN rate_interval_seconds float8,             -- the time between two jobs, on average
    ADD COLUMN paused_at timestamptz;
ALTER TABLE onceward.sources ADD COLUMN paused_at timestamptz;

-- Until when each handler with a rate has used it up: the theoretical arrival time of GCRA.
CREATE TABLE onceward.rates (
    handler integer PRIMARY KEY,
    used_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A parked job is not due even if its time has come: an earlier job of its key is unfinished, or its
-- source is paused. Only claims park, and only under their lock, so that no wake-up is lost.
ALTER TABLE onceward.jobs
    ADD COLUMN ordering_key text COLLATE "C",
    ADD COLUMN parked boolean NOT NULL DEFAULT false;
DROP INDEX onceward.jobs_due;
CREATE INDEX jobs_due ON onceward.jobs (handler, solo, (attempts > 0), available_at, id)
    WHERE status = 'queued' AND NOT parked;
CREATE INDEX jobs_by_key ON onceward.jobs (handler, ordering_key, event)
    WHERE ordering_key IS NOT NULL AND status IN ('queued', 'failed');
CREATE INDEX jobs_parked ON onceward.jobs (id) WHERE status = 'queued' AND parked;

-- The number of a worker. One session of the worker holds an advisory lock on it while it lives.
CREATE SEQUENCE onceward.worker_numbers AS integer CYCLE;

-- Ids grow in the order of commits, because claims exclude each other: a claim need not read the dead
-- rows below the oldest live lease. `owner` is the number of the worker, or 0 if no session stands for
-- it. `slots` is how many jobs of one handler the worker runs at once. `guarded` are the jobs that have
-- a key or whose handler has a limit.
ALTER TABLE onceward.leases
    ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY,
    ADD COLUMN owner integer NOT NULL DEFAULT 0,
    ADD COLUMN dead_since timestamptz,
    ADD COLUMN slots integer NOT NULL DEFAULT 2147483647,
    ADD COLUMN guarded bigint[] NOT NULL DEFAULT '{}';
CREATE INDEX leases_by_id ON onceward.leases (id);
