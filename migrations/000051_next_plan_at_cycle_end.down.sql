ALTER TABLE subjects DROP COLUMN next_plan_at_cycle_end;
