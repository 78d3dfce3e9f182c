ALTER TABLE api_keys DROP COLUMN resources, DROP COLUMN addresses;
