REVOKE SELECT (id, email) ON people FROM weir_app;
DROP POLICY own_members ON people;
DROP POLICY all_people ON people;
ALTER TABLE people NO FORCE ROW LEVEL SECURITY;
ALTER TABLE people DISABLE ROW LEVEL SECURITY;
DELETE FROM members WHERE joined_at IS NULL;
ALTER TABLE members DROP COLUMN id, DROP COLUMN joined_at, DROP COLUMN updated_at, DROP COLUMN version;
DELETE FROM people WHERE password_hash IS NULL;
ALTER TABLE people ALTER COLUMN password_hash SET NOT NULL;
