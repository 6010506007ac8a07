-- The order of the list of watermarks, and when each was applied: a job that an operator wants to run
-- even if it is stale overrides only what was applied before the operator said so.
ALTER TABLE onceward.watermarks ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY;
ALTER TABLE onceward.watermarks ADD COLUMN applied_at timestamptz;
CREATE UNIQUE INDEX watermarks_by_id ON onceward.watermarks (id);
ALTER TABLE onceward.jobs ADD COLUMN even_if_stale_at timestamptz;
