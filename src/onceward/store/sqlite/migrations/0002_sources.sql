-- What is known of senders beyond their events: bodies that came under several ids, requests that
-- were refused, and secrets that were handed over.

-- The first event of each body, for sources whose ids nobody signs.
CREATE TABLE onceward_bodies (
    source INTEGER NOT NULL,
    body_sha256 BLOB NOT NULL,
    event INTEGER NOT NULL,
    PRIMARY KEY (source, body_sha256)
) WITHOUT ROWID;
-- The events that came later with the body of another.
CREATE TABLE onceward_twins (
    event INTEGER PRIMARY KEY
);

-- The event that a person made of a conflict.
ALTER TABLE onceward_deliveries ADD COLUMN accepted_as INTEGER;

-- Requests that did not verify. What is kept of one is kept to be verified again.
CREATE TABLE onceward_rejections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    received_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    received_as INTEGER,
    source INTEGER NOT NULL,
    count INTEGER NOT NULL,
    step TEXT NOT NULL,
    reason TEXT NOT NULL,
    request BLOB,
    body BLOB
);
CREATE INDEX onceward_rejections_by_source ON onceward_rejections (source, id);

CREATE TABLE onceward_rejection_counts (
    source INTEGER NOT NULL,
    step TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (source, step)
) WITHOUT ROWID;

CREATE TABLE onceward_learned_secrets (
    source INTEGER NOT NULL,
    secret BLOB NOT NULL,
    learned_at INTEGER NOT NULL,
    PRIMARY KEY (source, secret)
) WITHOUT ROWID;
