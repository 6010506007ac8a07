-- The ledger, the queue, the effects and the audit trail. Times are microseconds since 1970 in UTC.

CREATE TABLE onceward_counters (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO onceward_counters (name, value) VALUES ('ledger_ids', 0);

CREATE TABLE onceward_sources (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);

CREATE TABLE onceward_handlers (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    max_attempts INTEGER NOT NULL
);

-- The event types that each handler wants: exact or as a prefix, from one source or from any (0).
-- Processes renew the routes of their handlers; routes that no process renews are deleted.
CREATE TABLE onceward_routes (
    handler INTEGER NOT NULL REFERENCES onceward_handlers (id),
    source INTEGER NOT NULL,
    type TEXT NOT NULL,
    is_prefix INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (handler, source, type, is_prefix)
) WITHOUT ROWID;

-- One row for each event, kept for the dedupe window. The id of an event is the id of its first
-- delivery; redeliveries take theirs from the same counter.
CREATE TABLE onceward_events (
    id INTEGER PRIMARY KEY,
    received_at INTEGER NOT NULL,
    source INTEGER NOT NULL,
    deliveries INTEGER NOT NULL DEFAULT 1,
    conflicts INTEGER NOT NULL DEFAULT 0,
    routed INTEGER NOT NULL,
    event_id TEXT NOT NULL,
    type TEXT NOT NULL,
    reference TEXT,
    body_sha256 BLOB NOT NULL,
    CONSTRAINT events_once UNIQUE (source, event_id)
);
CREATE INDEX onceward_events_by_reference ON onceward_events (reference, id)
    WHERE reference IS NOT NULL;
CREATE INDEX onceward_events_unrouted ON onceward_events (id) WHERE NOT routed;

CREATE TABLE onceward_payloads (
    event INTEGER PRIMARY KEY,
    received_at INTEGER NOT NULL,
    headers BLOB NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE onceward_deliveries (
    id INTEGER PRIMARY KEY,
    event INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    outcome TEXT NOT NULL CHECK (outcome IN ('duplicate', 'conflict')),
    body_sha256 BLOB NOT NULL,
    body BLOB,
    -- The event that an operator created from a conflict.
    accepted_as INTEGER
);
CREATE INDEX onceward_deliveries_by_event ON onceward_deliveries (event, id);
CREATE INDEX onceward_deliveries_in_conflict ON onceward_deliveries (id)
    WHERE outcome = 'conflict';

-- A leased job is still `queued` here; its lease makes it in progress.
CREATE TABLE onceward_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    event INTEGER NOT NULL,
    received_at INTEGER NOT NULL,
    available_at INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    finished_at INTEGER,
    handler INTEGER NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    solo INTEGER NOT NULL DEFAULT 0,
    status TEXT NOT NULL DEFAULT 'queued'
        CHECK (status IN ('queued', 'done', 'failed', 'ignored', 'cancelled')),
    failure_type TEXT,
    last_error TEXT,
    CONSTRAINT jobs_once UNIQUE (event, handler)
);
CREATE INDEX onceward_jobs_due ON onceward_jobs (handler, solo, available_at, id)
    WHERE status = 'queued';
CREATE INDEX onceward_jobs_by_status ON onceward_jobs (status, id)
    WHERE status IN ('failed', 'ignored', 'cancelled');

-- `jobs` is a JSON array of job ids.
CREATE TABLE onceward_leases (
    token TEXT PRIMARY KEY,
    worker TEXT NOT NULL,
    until INTEGER NOT NULL,
    jobs TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE onceward_attempts (
    job INTEGER NOT NULL,
    number INTEGER NOT NULL,
    worker TEXT NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at INTEGER NOT NULL,
    error TEXT NOT NULL,
    PRIMARY KEY (job, number)
) WITHOUT ROWID;

CREATE TABLE onceward_effects (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    idempotency_key TEXT NOT NULL,
    reference TEXT,
    status TEXT NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed', 'unknown')),
    error_message TEXT,
    CONSTRAINT effects_once UNIQUE (idempotency_key)
);
CREATE INDEX onceward_effects_by_job ON onceward_effects (job);
CREATE INDEX onceward_effects_by_reference ON onceward_effects (reference, id)
    WHERE reference IS NOT NULL;
CREATE INDEX onceward_effects_by_status ON onceward_effects (status, id)
    WHERE status <> 'succeeded';

CREATE TABLE onceward_audit (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    authenticated_as TEXT NOT NULL,
    action TEXT NOT NULL,
    reason TEXT NOT NULL,
    subject TEXT NOT NULL
);
CREATE INDEX onceward_audit_by_subject ON onceward_audit (subject, id);
CREATE TRIGGER onceward_audit_keeps_rows BEFORE DELETE ON onceward_audit
    BEGIN SELECT RAISE(ABORT, 'onceward_audit is append only'); END;
CREATE TRIGGER onceward_audit_keeps_values BEFORE UPDATE ON onceward_audit
    BEGIN SELECT RAISE(ABORT, 'onceward_audit is append only'); END;

CREATE TABLE onceward_tokens (
    name TEXT PRIMARY KEY,
    sha256 BLOB NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;

-- The first event with each body, for sources that do not sign the event id.
CREATE TABLE onceward_body_hashes (
    source INTEGER NOT NULL,
    body_sha256 BLOB NOT NULL,
    event INTEGER NOT NULL,
    PRIMARY KEY (source, body_sha256)
) WITHOUT ROWID;
-- Events whose body came before, under another id.
CREATE TABLE onceward_duplicate_bodies (
    event INTEGER PRIMARY KEY
);

-- Rejected requests. `request` and `body` are stored if the request may be verified again.
CREATE TABLE onceward_rejections (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    received_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    received_as INTEGER,
    source INTEGER NOT NULL,
    count INTEGER NOT NULL,
    cause TEXT NOT NULL,
    reason TEXT NOT NULL,
    request BLOB,
    body BLOB
);
CREATE INDEX onceward_rejections_by_source ON onceward_rejections (source, id);

CREATE TABLE onceward_rejection_counts (
    source INTEGER NOT NULL,
    cause TEXT NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (source, cause)
) WITHOUT ROWID;

CREATE TABLE onceward_provisioned_secrets (
    source INTEGER NOT NULL,
    secret BLOB NOT NULL,
    provisioned_at INTEGER NOT NULL,
    PRIMARY KEY (source, secret)
) WITHOUT ROWID;
