ALTER TABLE billing_subscriptions DROP COLUMN standing, DROP COLUMN priority;
