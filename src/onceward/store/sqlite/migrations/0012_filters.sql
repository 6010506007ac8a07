-- What the payload of an event must have to become a job of the route, as canonical JSON; '' if anything
-- will do. During a deploy a handler may have several filters for one pattern.
CREATE TABLE onceward_new_routes (
    handler INTEGER NOT NULL REFERENCES onceward_handlers (id),
    source INTEGER NOT NULL,
    type TEXT NOT NULL,
    is_prefix INTEGER NOT NULL,
    filter TEXT NOT NULL DEFAULT '',
    seen_at INTEGER NOT NULL,
    PRIMARY KEY (handler, source, type, is_prefix, filter)
) WITHOUT ROWID;
INSERT INTO onceward_new_routes (handler, source, type, is_prefix, seen_at)
SELECT handler, source, type, is_prefix, seen_at FROM onceward_routes;
DROP TABLE onceward_routes;
ALTER TABLE onceward_new_routes RENAME TO onceward_routes;

-- `final_state` is also the state of an event that was recorded without jobs: `review` while it waits for
-- a person, `ignored` if filters rejected it.
CREATE INDEX onceward_events_in_review ON onceward_events (id) WHERE final_state = 'review';
