-- Workers that are alive: each renews its row. `handlers` is a JSON array of names.
CREATE TABLE onceward.workers (
    name text COLLATE "C" PRIMARY KEY,
    handlers text NOT NULL,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
);
