-- The newest version that each handler applied for each key, and the event that had it. Rows are never
-- purged: they must outlive every job that may still run.
CREATE TABLE onceward_watermarks (
    handler INTEGER NOT NULL,
    key TEXT NOT NULL,
    version TEXT NOT NULL,  -- JSON: a number or a string
    event_id TEXT NOT NULL,
    source TEXT NOT NULL,
    PRIMARY KEY (handler, key)
);

-- Whether an operator wants the job to run even if its key has applied a newer version.
ALTER TABLE onceward_jobs ADD COLUMN even_if_stale INTEGER NOT NULL DEFAULT 0;
