-- The ledger, the queue, the effects and the audit trail.

CREATE SEQUENCE onceward.ledger_ids AS bigint;

CREATE TABLE onceward.sources (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE
);

CREATE TABLE onceward.handlers (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    max_attempts integer NOT NULL
);

-- The event types that each handler wants: exact or as a prefix, from one source or from any (0).
-- Processes renew the routes of their handlers; routes that no process renews are deleted.
CREATE TABLE onceward.routes (
    handler integer NOT NULL REFERENCES onceward.handlers,
    source integer NOT NULL,
    type text COLLATE "C" NOT NULL,
    is_prefix boolean NOT NULL,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (handler, source, type, is_prefix)
);

-- One row for each event, kept for the dedupe window. The id of an event is the id of its first
-- delivery; redeliveries take theirs from the same sequence.
CREATE TABLE onceward.events (
    id bigint PRIMARY KEY,
    received_at timestamptz NOT NULL,
    source integer NOT NULL,
    deliveries integer NOT NULL DEFAULT 1,
    conflicts integer NOT NULL DEFAULT 0,
    routed boolean NOT NULL,
    event_id text COLLATE "C" NOT NULL,
    type text COLLATE "C" NOT NULL,
    reference text COLLATE "C",
    body_sha256 bytea NOT NULL,
    CONSTRAINT events_once UNIQUE (source, event_id)
);
CREATE INDEX events_by_reference ON onceward.events (reference, id) WHERE reference IS NOT NULL;
CREATE INDEX events_unrouted ON onceward.events (id) WHERE NOT routed;

CREATE TABLE onceward.payloads (
    event bigint NOT NULL,
    received_at timestamptz NOT NULL,
    headers bytea NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (event, received_at)
) PARTITION BY RANGE (received_at);
-- Payloads for which no partition was created in time.
CREATE TABLE onceward.payloads_default PARTITION OF onceward.payloads DEFAULT;

-- Creates the partitions of this week and of the weeks ahead. CREATE and ATTACH instead of PARTITION
-- OF, which would block inserts. A week whose payloads are in the default partition is skipped.
CREATE FUNCTION onceward.make_payload_partitions(ahead_weeks integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    starts timestamptz;
    ends timestamptz;
    partition text;
BEGIN
    FOR week IN 0..ahead_weeks LOOP
        starts := (date_trunc('week', now() AT TIME ZONE 'UTC') + week * interval '1 week')
            AT TIME ZONE 'UTC';
        ends := starts + interval '1 week';
        partition := 'payloads_' || to_char(starts AT TIME ZONE 'UTC', 'YYYYMMDD');
        CONTINUE WHEN to_regclass('onceward.' || partition) IS NOT NULL;
        CONTINUE WHEN EXISTS (
            SELECT 1 FROM onceward.payloads_default WHERE received_at >= starts AND received_at < ends
        );
        EXECUTE format(
            'CREATE TABLE onceward.%I (LIKE onceward.payloads INCLUDING ALL)', partition
        );
        EXECUTE format(
            'ALTER TABLE onceward.payloads ATTACH PARTITION onceward.%I FOR VALUES FROM (%L) TO (%L)',
            partition, starts, ends
        );
    END LOOP;
END
$$;
SELECT onceward.make_payload_partitions(4);

CREATE TABLE onceward.deliveries (
    id bigint PRIMARY KEY,
    event bigint NOT NULL,
    received_at timestamptz NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('duplicate', 'conflict')),
    body_sha256 bytea NOT NULL,
    body bytea,
    -- The event that an operator created from a conflict.
    accepted_as bigint
);
CREATE INDEX deliveries_by_event ON onceward.deliveries (event, id);
CREATE INDEX deliveries_in_conflict ON onceward.deliveries (id) WHERE outcome = 'conflict';

-- A leased job is still `queued` here; its lease makes it in progress.
CREATE TABLE onceward.jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event bigint NOT NULL,
    received_at timestamptz NOT NULL,
    available_at timestamptz NOT NULL,
    created_at timestamptz NOT NULL,
    finished_at timestamptz,
    handler integer NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL,
    solo boolean NOT NULL DEFAULT false,
    status text NOT NULL DEFAULT 'queued'
        CHECK (status IN ('queued', 'done', 'failed', 'ignored', 'cancelled')),
    failure_type text,
    last_error text,
    CONSTRAINT jobs_once UNIQUE (event, handler)
);
CREATE INDEX jobs_due ON onceward.jobs (handler, solo, available_at, id) WHERE status = 'queued';
CREATE INDEX jobs_by_status ON onceward.jobs (status, id)
    WHERE status IN ('failed', 'ignored', 'cancelled');

CREATE TABLE onceward.leases (
    token text PRIMARY KEY,
    worker text NOT NULL,
    until timestamptz NOT NULL,
    jobs bigint[] NOT NULL
);

CREATE TABLE onceward.attempts (
    job bigint NOT NULL,
    number integer NOT NULL,
    worker text NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL,
    error text NOT NULL,
    PRIMARY KEY (job, number)
);

CREATE TABLE onceward.effects (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    idempotency_key text COLLATE "C" NOT NULL,
    reference text COLLATE "C",
    status text NOT NULL CHECK (status IN ('pending', 'succeeded', 'failed', 'unknown')),
    error_message text,
    CONSTRAINT effects_once UNIQUE (idempotency_key)
);
CREATE INDEX effects_by_job ON onceward.effects (job);
CREATE INDEX effects_by_reference ON onceward.effects (reference, id) WHERE reference IS NOT NULL;
CREATE INDEX effects_by_status ON onceward.effects (status, id) WHERE status <> 'succeeded';

CREATE TABLE onceward.audit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    authenticated_as text NOT NULL,
    action text NOT NULL,
    reason text NOT NULL,
    subject text NOT NULL
);
CREATE INDEX audit_by_subject ON onceward.audit (subject, id);

CREATE FUNCTION onceward.reject_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'onceward.audit is append only';
END
$$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON onceward.audit
    FOR EACH STATEMENT EXECUTE FUNCTION onceward.reject_audit_change();

CREATE TABLE onceward.tokens (
    name text COLLATE "C" PRIMARY KEY,
    sha256 bytea NOT NULL,
    created_at timestamptz NOT NULL
);

-- The first event with each body, for sources that do not sign the event id.
CREATE TABLE onceward.body_hashes (
    source integer NOT NULL,
    body_sha256 bytea NOT NULL,
    event bigint NOT NULL,
    PRIMARY KEY (source, body_sha256)
);
-- Events whose body came before, under another id.
CREATE TABLE onceward.duplicate_bodies (
    event bigint PRIMARY KEY
);

-- Rejected requests. `request` and `body` are stored if the request may be verified again.
CREATE TABLE onceward.rejections (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    received_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    received_as bigint,
    source integer NOT NULL,
    count integer NOT NULL,
    cause text NOT NULL,
    reason text NOT NULL,
    request bytea,
    body bytea
);
CREATE INDEX rejections_by_source ON onceward.rejections (source, id);

CREATE TABLE onceward.rejection_counts (
    source integer NOT NULL,
    cause text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (source, cause)
);

CREATE TABLE onceward.provisioned_secrets (
    source integer NOT NULL,
    secret bytea NOT NULL,
    provisioned_at timestamptz NOT NULL,
    PRIMARY KEY (source, secret)
);
