-- The newest version that each handler applied for each key, and the event that had it. Rows are never
-- purged: they must outlive every job that may still run.
CREATE TABLE onceward.watermarks (
    handler integer NOT NULL,
    key text COLLATE "C" NOT NULL,
    version text NOT NULL,  -- JSON: a number or a string
    event_id text NOT NULL,
    source text NOT NULL,
    CONSTRAINT watermarks_once PRIMARY KEY (handler, key)
) WITH (fillfactor = 80);

-- Whether an operator wants the job to run even if its key has applied a newer version.
ALTER TABLE onceward.jobs ADD COLUMN even_if_stale boolean NOT NULL DEFAULT false;
