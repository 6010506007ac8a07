-- body_hashes.body_sha256 is the hash of what the proof covers of an event, which may be less than its
-- body. So the hash of an event finds neither its row here nor the event that came first.
CREATE INDEX onceward_body_hashes_by_event ON onceward_body_hashes (event);
ALTER TABLE onceward_duplicate_bodies ADD COLUMN original INTEGER;
UPDATE onceward_duplicate_bodies AS d SET original = (
    SELECT b.event FROM onceward_events e
    JOIN onceward_body_hashes b ON b.source = e.source AND b.body_sha256 = e.body_sha256
    WHERE e.id = d.event
);
