ALTER TABLE billing_endpoints DROP COLUMN purchases_compared_at;
