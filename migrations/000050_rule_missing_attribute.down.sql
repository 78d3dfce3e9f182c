ALTER TABLE rules DROP COLUMN on_missing_attribute;
