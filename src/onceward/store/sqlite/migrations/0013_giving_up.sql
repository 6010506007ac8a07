-- A handler with on_failed: when its worker dies in the last attempt of a job, the reclaim leaves the
-- job queued and `giving_up`, so that another worker ends it as failed, with on_failed.
ALTER TABLE onceward_handlers ADD COLUMN has_on_failed INTEGER NOT NULL DEFAULT 0;
ALTER TABLE onceward_jobs ADD COLUMN giving_up INTEGER NOT NULL DEFAULT 0;
