DROP TABLE metered_push_problems;
DROP TABLE metered_pushes;
DROP TABLE metering_gaps;
DROP TABLE metering_state;
DROP TABLE metering_writers;
DROP TABLE metered_totals;
DROP TABLE metered_usage;
ALTER TABLE rules DROP COLUMN meter_event, DROP COLUMN metering;
