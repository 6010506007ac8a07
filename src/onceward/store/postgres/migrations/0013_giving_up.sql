-- A handler with on_failed: when its worker dies in the last attempt of a job, the reclaim leaves the
-- job queued and `giving_up`, so that another worker ends it as failed, with on_failed.
ALTER TABLE onceward.handlers ADD COLUMN has_on_failed boolean NOT NULL DEFAULT false;
ALTER TABLE onceward.jobs ADD COLUMN giving_up boolean NOT NULL DEFAULT false;
