-- Files of archived payloads. A file is recorded after it was written, read back and compared.
CREATE TABLE onceward_archives (
    id INTEGER PRIMARY KEY,
    first_event INTEGER NOT NULL,
    last_event INTEGER NOT NULL,
    body_bytes INTEGER NOT NULL,
    file_bytes INTEGER NOT NULL,
    archived_at INTEGER NOT NULL,
    verified_at INTEGER NOT NULL,
    restored_at INTEGER,
    part INTEGER NOT NULL,
    rows INTEGER NOT NULL,
    week TEXT NOT NULL,                 -- its Monday in UTC: YYYYMMDD
    path TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    content_sha256 BLOB NOT NULL,
    CONSTRAINT archives_once UNIQUE (week, part)
);

-- The payloads of a week. PostgreSQL has partitions instead.
CREATE INDEX onceward_payloads_by_time ON onceward_payloads (received_at, event);
