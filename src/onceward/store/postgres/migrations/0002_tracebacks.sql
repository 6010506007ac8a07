-- Where a failed attempt was raised: file, line and function of each frame, without values.
ALTER TABLE onceward.attempts ADD COLUMN traceback text NOT NULL DEFAULT '';
