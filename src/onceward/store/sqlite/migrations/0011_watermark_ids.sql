-- The order of the list of watermarks, and when each was applied: a job that an operator wants to run
-- even if it is stale overrides only what was applied before the operator said so.
CREATE TABLE onceward_new_watermarks (
    id INTEGER PRIMARY KEY,
    handler INTEGER NOT NULL,
    key TEXT NOT NULL,
    version TEXT NOT NULL,  -- JSON: a number or a string
    event_id TEXT NOT NULL,
    source TEXT NOT NULL,
    applied_at INTEGER,
    UNIQUE (handler, key)
);
INSERT INTO onceward_new_watermarks (handler, key, version, event_id, source)
SELECT handler, key, version, event_id, source FROM onceward_watermarks ORDER BY rowid;
DROP TABLE onceward_watermarks;
ALTER TABLE onceward_new_watermarks RENAME TO onceward_watermarks;
ALTER TABLE onceward_jobs ADD COLUMN even_if_stale_at INTEGER;
