-- A week is named by its Monday, `:week`; `:starts` and `:ends` are its bounds in seconds since 1970.

-- name: archives_page
-- A page of recorded files, in the order of weeks and parts.
SELECT
    a.id, a.week, a.part, a.path, a.rows, a.body_bytes, a.file_bytes, a.sha256, a.content_sha256,
    a.first_event, a.last_event, a.archived_at, a.verified_at, a.restored_at
FROM onceward.archives a
WHERE TRUE
-- if after
    AND (a.week, a.part) > (SELECT b.week, b.part FROM onceward.archives b WHERE b.id = :after)
-- end
-- if week
    AND a.week = :week
-- end
-- if event
    AND :event BETWEEN a.first_event AND a.last_event
-- end
ORDER BY a.week, a.part
LIMIT :limit

-- name: add_archive
-- Record a verified file, unless another archiver has recorded the same part.
INSERT INTO onceward.archives (
    week, part, path, rows, body_bytes, file_bytes, sha256, content_sha256, first_event, last_event,
    archived_at, verified_at
)
VALUES (
    :week, :part, :path, :rows, :body_bytes, :file_bytes, :sha256, :content_sha256, :first_event,
    :last_event, :now, :now
)
ON CONFLICT (week, part) DO NOTHING
RETURNING id, archived_at, verified_at, restored_at

-- name: set_archive_verified
-- Store that a recorded file was read and compared again.
UPDATE onceward.archives SET verified_at = :now WHERE id = :id

-- name: start_restore
-- Store that the files of a week are restored: its payloads are kept for a while from now on.
UPDATE onceward.archives SET restored_at = :now WHERE week = :week RETURNING id

-- name: restored_weeks
-- The weeks that were restored since a time: their payloads are kept for as long as new ones.
SELECT DISTINCT week FROM onceward.archives WHERE restored_at >= :before

-- name: find_event_id
-- The id of the event with this key.
SELECT e.id
FROM onceward.events e
JOIN onceward.sources s ON s.id = e.source
WHERE s.name = :source AND e.event_id = :event_id

-- name: is_same_event
-- Whether the ledger has the event with this id under this key.
SELECT 1 AS same
FROM onceward.events e
JOIN onceward.sources s ON s.id = e.source
WHERE e.id = :id AND s.name = :source AND e.event_id = :event_id

-- name: is_other_event
-- Whether an id or a key belongs to another event.
SELECT
    EXISTS (
        SELECT 1 FROM onceward.events e JOIN onceward.sources s ON s.id = e.source
        WHERE s.name = :source AND e.event_id = :event_id AND e.id <> :id
    ) AS has_key,
    EXISTS (SELECT 1 FROM onceward.events e WHERE e.id = :id) AS has_id

-- name: restore_payload
-- Put back the payload of an event that the ledger has under the same key, unless it is there.
INSERT INTO onceward.payloads (event, received_at, headers, body)
SELECT e.id, e.received_at, :headers, :body
FROM onceward.events e
JOIN onceward.sources s ON s.id = e.source
WHERE e.id = :id AND s.name = :source AND e.event_id = :event_id
ON CONFLICT DO NOTHING
RETURNING event
