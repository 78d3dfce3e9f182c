DROP TRIGGER note_deleted_meter ON rules;
DROP TRIGGER note_changed_meter ON rules;
DROP FUNCTION note_ended_meter();
DROP TABLE ended_meters;
ALTER TABLE billing_endpoints DROP COLUMN purchases_compared_at;
