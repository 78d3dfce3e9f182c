ALTER TABLE billing_endpoints DROP COLUMN refused_at, DROP COLUMN refused_why;
