-- Calendar windows by the clock of a time zone, and by each subject's own cycle. Servers go on
-- that know nothing of the new columns.

-- The CHECK of the window's text has no name of its own.
DO $$
DECLARE
    constraint_name text;
BEGIN
    SELECT conname INTO STRICT constraint_name FROM pg_constraint
    WHERE conrelid = 'rules'::regclass AND contype = 'c' AND pg_get_constraintdef(oid) LIKE '%window_text%';
    EXECUTE format('ALTER TABLE rules DROP CONSTRAINT %I', constraint_name);
END $$;

ALTER TABLE rules
    ADD COLUMN zone text CHECK (octet_length(zone) BETWEEN 1 AND 64), -- IANA; null: UTC
    ADD COLUMN anchor text CHECK (anchor IN ('calendar', 'subject')), -- null: calendar
    ADD CHECK (CASE WHEN window_ms IS NULL
        THEN algorithm = 'fixed_window' AND window_text IN ('day', 'week', 'month', 'year')
        ELSE window_text NOT IN ('', 'day', 'week', 'month', 'year') END),
    -- Only the windows of a calendar unit have a zone and an anchor.
    ADD CHECK (window_ms IS NULL OR zone IS NULL AND anchor IS NULL),
    -- Windows that follow the subject need a counter for each subject.
    ADD CHECK (anchor = 'calendar' OR 'subject' = ANY (by_values));

-- Where the windows of rules with the anchor "subject" begin for this subject; null: by the calendar.
ALTER TABLE subjects ADD COLUMN cycle_anchor timestamptz
    CHECK (cycle_anchor >= '0001-01-01 00:00:00+00' AND cycle_anchor < '10000-01-01 00:00:00+00');
GRANT SELECT (cycle_anchor) ON subjects TO weir_system;
