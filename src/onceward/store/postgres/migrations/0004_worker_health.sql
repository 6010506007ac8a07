-- Why jobs of a live worker may wait: paused handlers and failed claims, a JSON object.
ALTER TABLE onceward.workers ADD COLUMN health text NOT NULL DEFAULT '{}';
