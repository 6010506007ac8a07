-- Where a failed attempt was raised: file, line and function of each frame, without values.
ALTER TABLE onceward_attempts ADD COLUMN traceback TEXT NOT NULL DEFAULT '';
