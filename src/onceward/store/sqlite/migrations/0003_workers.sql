-- Workers that are alive: each renews its row. `handlers` is a JSON array of names.
CREATE TABLE onceward_workers (
    name TEXT PRIMARY KEY,
    handlers TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL
) WITHOUT ROWID;
