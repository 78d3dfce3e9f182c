ALTER TABLE subjects DROP COLUMN cycle_anchor;
ALTER TABLE rules DROP COLUMN anchor, DROP COLUMN zone; -- and with them what they are checked by

DO $$
DECLARE
    constraint_name text;
BEGIN
    SELECT conname INTO STRICT constraint_name FROM pg_constraint
    WHERE conrelid = 'rules'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%window_text%';
    EXECUTE format('ALTER TABLE rules DROP CONSTRAINT %I', constraint_name);
END $$;

-- It fails while there is a rule by the year: change such rules first.
ALTER TABLE rules ADD CHECK (CASE WHEN window_ms IS NULL
    THEN algorithm = 'fixed_window' AND window_text IN ('day', 'week', 'month')
    ELSE window_text NOT IN ('', 'day', 'week', 'month') END);
