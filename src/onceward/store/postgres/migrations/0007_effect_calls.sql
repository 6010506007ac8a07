-- The outside calls of effects. A mark of effects.once has no function and no calls.
ALTER TABLE onceward.effects
    ADD COLUMN first_call_at timestamptz,
    ADD COLUMN deadline_at timestamptz,                 -- until then the last call may be under way
    ADD COLUMN call_no integer NOT NULL DEFAULT 0,
    ADD COLUMN doubt boolean NOT NULL DEFAULT false, -- whether an earlier call may have been applied
    ADD COLUMN function text,
    ADD COLUMN nonce text,
    ADD COLUMN result text;                          -- JSON
CREATE INDEX effects_open ON onceward.effects (deadline_at) WHERE status IN ('pending', 'unknown');

-- The effect whose outcome a failed job waits for.
ALTER TABLE onceward.jobs ADD COLUMN effect bigint;
CREATE INDEX jobs_by_effect ON onceward.jobs (effect) WHERE effect IS NOT NULL AND status = 'failed';
