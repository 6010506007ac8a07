-- The state of an event whose ended jobs were purged: `succeeded` if one of them was done, else `ignored`.
ALTER TABLE onceward.events
    ADD COLUMN final_state text,
    ADD COLUMN processed_at timestamptz;
CREATE INDEX events_ignored ON onceward.events (id) WHERE final_state = 'ignored';

-- When a key was last used without a change, to the day. NULL: its last use was its last change.
ALTER TABLE onceward.effects ADD COLUMN used_at timestamptz;

-- The audit trail by month, so that old entries are dropped with their partition. The entries so far,
-- and those of this month, become the first partition.
ALTER TABLE onceward.audit RENAME TO audit_history;
ALTER TABLE onceward.audit_history ALTER COLUMN id DROP IDENTITY;
ALTER TABLE onceward.audit_history DROP CONSTRAINT audit_pkey;
ALTER TABLE onceward.audit_history ADD PRIMARY KEY (id, at);
ALTER INDEX onceward.audit_by_subject RENAME TO audit_history_by_subject;

CREATE TABLE onceward.audit (
    id bigint GENERATED ALWAYS AS IDENTITY,
    at timestamptz NOT NULL,
    actor text NOT NULL,
    authenticated_as text NOT NULL,
    action text NOT NULL,
    reason text NOT NULL,
    subject text NOT NULL,
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE INDEX audit_by_subject ON onceward.audit (subject, id);
SELECT setval(pg_get_serial_sequence('onceward.audit', 'id'), COALESCE(max(id), 0) + 1, false)
FROM onceward.audit_history;
CREATE TABLE onceward.audit_default PARTITION OF onceward.audit DEFAULT;
-- Each partition has the trigger too: a statement may name it instead of its parent.
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON onceward.audit
    FOR EACH STATEMENT EXECUTE FUNCTION onceward.reject_audit_change();
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON onceward.audit_default
    FOR EACH STATEMENT EXECUTE FUNCTION onceward.reject_audit_change();

DO $$
DECLARE
    next_month timestamptz :=
        (date_trunc('month', now() AT TIME ZONE 'UTC') + interval '1 month') AT TIME ZONE 'UTC';
    granted record;
BEGIN
    EXECUTE format(
        'ALTER TABLE onceward.audit ATTACH PARTITION onceward.audit_history FOR VALUES FROM (MINVALUE) TO (%L)',
        next_month
    );
    -- The grants stay with the renamed table. The new one needs them for processes that run now, on
    -- the table and on its columns, with their grant options, and none by default privileges.
    FOR granted IN
        SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END AS grantee
        FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS acl
        WHERE c.oid = 'onceward.audit'::regclass AND acl.grantee <> c.relowner
    LOOP
        EXECUTE format('REVOKE ALL ON onceward.audit FROM %s', granted.grantee);
    END LOOP;
    FOR granted IN
        SELECT
            acl.privilege_type || COALESCE(' (' || quote_ident(acls.name) || ')', '') AS privilege,
            CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE acl.grantee::regrole::text END AS grantee,
            CASE WHEN acl.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS option
        FROM pg_class c
        CROSS JOIN LATERAL (
            SELECT NULL::name AS name, c.relacl AS acl
            UNION ALL SELECT a.attname, a.attacl FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        ) AS acls
        CROSS JOIN LATERAL aclexplode(acls.acl) AS acl
        WHERE c.oid = 'onceward.audit_history'::regclass AND acl.grantee <> c.relowner
    LOOP
        EXECUTE format(
            'GRANT %s ON onceward.audit TO %s%s', granted.privilege, granted.grantee, granted.option
        );
    END LOOP;
END
$$;
