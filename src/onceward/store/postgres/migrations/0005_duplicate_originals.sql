-- body_hashes.body_sha256 is the hash of what the proof covers of an event, which may be less than its
-- body. So the hash of an event finds neither its row here nor the event that came first.
CREATE INDEX body_hashes_by_event ON onceward.body_hashes (event);
ALTER TABLE onceward.duplicate_bodies ADD COLUMN original bigint;
UPDATE onceward.duplicate_bodies d SET original = b.event
FROM onceward.events e, onceward.body_hashes b
WHERE e.id = d.event AND b.source = e.source AND b.body_sha256 = e.body_sha256;

-- Returns the first event with this content. A volatile function sees what was committed before its
-- call, the rest of a statement only what was committed before the statement.
CREATE FUNCTION onceward.first_event_with(source integer, covered_sha256 bytea) RETURNS bigint
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    SELECT b.event FROM onceward.body_hashes b WHERE b.source = $1 AND b.body_sha256 = $2
$$;

-- An owner who calls it must not run the operators of others.
ALTER FUNCTION onceward.make_payload_partitions(integer) SET search_path = pg_catalog, pg_temp;
