-- The rules of each handler's queue, and who is paused.
ALTER TABLE onceward_handlers ADD COLUMN ordering_key TEXT;  -- a path into the payload
-- Whether a failed job holds up its key.
ALTER TABLE onceward_handlers ADD COLUMN holds_key INTEGER NOT NULL DEFAULT 1;
ALTER TABLE onceward_handlers ADD COLUMN concurrency INTEGER;
-- The time between two jobs, on average.
ALTER TABLE onceward_handlers ADD COLUMN rate_interval_seconds REAL;
ALTER TABLE onceward_handlers ADD COLUMN paused_at INTEGER;
ALTER TABLE onceward_sources ADD COLUMN paused_at INTEGER;

-- Until when each handler with a rate has used it up: the theoretical arrival time of GCRA.
CREATE TABLE onceward_rates (
    handler INTEGER PRIMARY KEY,
    used_until INTEGER NOT NULL
);

-- A parked job is not due even if its time has come: an earlier job of its key is unfinished, or its
-- source is paused.
ALTER TABLE onceward_jobs ADD COLUMN ordering_key TEXT;
ALTER TABLE onceward_jobs ADD COLUMN parked INTEGER NOT NULL DEFAULT 0;
DROP INDEX onceward_jobs_due;
CREATE INDEX onceward_jobs_due ON onceward_jobs (handler, solo, (attempts > 0), available_at, id)
    WHERE status = 'queued' AND NOT parked;
CREATE INDEX onceward_jobs_by_key ON onceward_jobs (handler, ordering_key, event)
    WHERE ordering_key IS NOT NULL AND status IN ('queued', 'failed');
CREATE INDEX onceward_jobs_parked ON onceward_jobs (id) WHERE status = 'queued' AND parked;

-- `slots` is how many jobs of one handler the worker runs at once. `guarded` are the jobs that have a
-- key or whose handler has a limit, as a JSON array. `id` grows with each claim.
ALTER TABLE onceward_leases ADD COLUMN slots INTEGER NOT NULL DEFAULT 2147483647;
ALTER TABLE onceward_leases ADD COLUMN guarded TEXT NOT NULL DEFAULT '[]';
ALTER TABLE onceward_leases ADD COLUMN id INTEGER NOT NULL DEFAULT 0;
