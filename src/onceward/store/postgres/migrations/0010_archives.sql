-- Files of archived payloads. A file is recorded after it was written, read back and compared.
CREATE TABLE onceward.archives (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    first_event bigint NOT NULL,
    last_event bigint NOT NULL,
    body_bytes bigint NOT NULL,
    file_bytes bigint NOT NULL,
    archived_at timestamptz NOT NULL,
    verified_at timestamptz NOT NULL,
    restored_at timestamptz,
    part integer NOT NULL,
    rows integer NOT NULL,
    week text COLLATE "C" NOT NULL,     -- its Monday in UTC: YYYYMMDD
    path text NOT NULL,
    sha256 bytea NOT NULL,
    content_sha256 bytea NOT NULL,
    CONSTRAINT archives_once UNIQUE (week, part)
);
