-- What the payload of an event must have to become a job of the route, as canonical JSON; '' if anything
-- will do. During a deploy a handler may have several filters for one pattern.
ALTER TABLE onceward.routes ADD COLUMN filter text COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE onceward.routes DROP CONSTRAINT routes_pkey;
ALTER TABLE onceward.routes ADD PRIMARY KEY (handler, source, type, is_prefix, filter);

-- `final_state` is also the state of an event that was recorded without jobs: `review` while it waits for
-- a person, `ignored` if filters rejected it.
CREATE INDEX events_in_review ON onceward.events (id) WHERE final_state = 'review';
