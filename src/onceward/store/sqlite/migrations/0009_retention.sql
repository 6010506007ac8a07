-- The state of an event whose ended jobs were purged: `succeeded` if one of them was done, else `ignored`.
ALTER TABLE onceward_events ADD COLUMN final_state TEXT;
ALTER TABLE onceward_events ADD COLUMN processed_at INTEGER;
CREATE INDEX onceward_events_ignored ON onceward_events (id) WHERE final_state = 'ignored';

-- When a key was last used without a change, to the day. NULL: its last use was its last change.
ALTER TABLE onceward_effects ADD COLUMN used_at INTEGER;

-- Maintenance moves the horizon of the audit trail; entries behind it may be deleted.
INSERT INTO onceward_counters (name, value) VALUES ('audit_horizon', 0);
DROP TRIGGER onceward_audit_keeps_rows;
CREATE TRIGGER onceward_audit_keeps_rows BEFORE DELETE ON onceward_audit
    WHEN OLD.at >= (SELECT value FROM onceward_counters WHERE name = 'audit_horizon')
    BEGIN SELECT RAISE(ABORT, 'onceward_audit is append only'); END;
