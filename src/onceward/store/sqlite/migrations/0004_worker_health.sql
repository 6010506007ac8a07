-- Why jobs of a live worker may wait: paused handlers and failed claims, a JSON object.
ALTER TABLE onceward_workers ADD COLUMN health TEXT NOT NULL DEFAULT '{}';
