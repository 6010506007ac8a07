-- The outside calls of effects. A mark of effects.once has no function and no calls.
ALTER TABLE onceward_effects ADD COLUMN first_call_at INTEGER;
-- Until then the last call may be under way.
ALTER TABLE onceward_effects ADD COLUMN deadline_at INTEGER;
ALTER TABLE onceward_effects ADD COLUMN call_no INTEGER NOT NULL DEFAULT 0;
-- Whether an earlier call may have been applied.
ALTER TABLE onceward_effects ADD COLUMN doubt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE onceward_effects ADD COLUMN function TEXT;
ALTER TABLE onceward_effects ADD COLUMN nonce TEXT;
ALTER TABLE onceward_effects ADD COLUMN result TEXT;  -- JSON
CREATE INDEX onceward_effects_open ON onceward_effects (deadline_at)
    WHERE status IN ('pending', 'unknown');

-- The effect whose outcome a failed job waits for.
ALTER TABLE onceward_jobs ADD COLUMN effect INTEGER;
CREATE INDEX onceward_jobs_by_effect ON onceward_jobs (effect)
    WHERE effect IS NOT NULL AND status = 'failed';
