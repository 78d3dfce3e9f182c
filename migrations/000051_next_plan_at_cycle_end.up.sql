-- Whether the next plan is given at the end of the subject's cycle: its time then follows the cycle
-- anchor. true or NULL, so that the audit trail mentions it only where it is true.
ALTER TABLE subjects
    ADD COLUMN next_plan_at_cycle_end boolean CHECK (next_plan_at_cycle_end);
UPDATE subjects s SET next_plan_at_cycle_end = true
FROM plan_migrations m
WHERE m.tenant_id = s.tenant_id AND m.id = s.migration_id AND m.at_cycle_end AND s.next_plan_id IS NOT NULL;
