-- name: was_routed
-- Whether a person routed the event to the handler: all other jobs are created with their event.
SELECT created_at > received_at AS was_routed FROM onceward.jobs WHERE id = :job

-- name: filters_for
-- The filters of a handler's routes for events of a source and type.
SELECT DISTINCT r.filter
FROM onceward.routes r JOIN onceward.handlers h ON h.id = r.handler
WHERE h.name = :handler
AND (r.source = 0 OR r.source = (SELECT id FROM onceward.sources WHERE name = :source))
AND CASE WHEN r.is_prefix THEN substr(CAST(:type AS text), 1, length(r.type)) = r.type
         ELSE CAST(:type AS text) = r.type END
