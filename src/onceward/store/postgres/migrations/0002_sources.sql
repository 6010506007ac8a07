-- What is known of senders beyond their events: bodies that came under several ids, requests that
-- were refused, and secrets that were handed over.

-- The first event of each body, for sources whose ids nobody signs.
CREATE TABLE onceward.bodies (
    source integer NOT NULL,
    body_sha256 bytea NOT NULL,
    event bigint NOT NULL,
    PRIMARY KEY (source, body_sha256)
);
-- The events that came later with the body of another.
CREATE TABLE onceward.twins (
    event bigint PRIMARY KEY
);

-- The event that a person made of a conflict.
ALTER TABLE onceward.deliveries ADD COLUMN accepted_as bigint;

-- Requests that did not verify. What is kept of one is kept to be verified again.
CREATE TABLE onceward.rejections (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    received_at timestamptz NOT NULL,
    last_at timestamptz NOT NULL,
    received_as bigint,
    source integer NOT NULL,
    count integer NOT NULL,
    step text NOT NULL,
    reason text NOT NULL,
    request bytea,
    body bytea
);
CREATE INDEX rejections_by_source ON onceward.rejections (source, id);

CREATE TABLE onceward.rejection_counts (
    source integer NOT NULL,
    step text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (source, step)
);

CREATE TABLE onceward.learned_secrets (
    source integer NOT NULL,
    secret bytea NOT NULL,
    learned_at timestamptz NOT NULL,
    PRIMARY KEY (source, secret)
);
