DROP INDEX credit_grants_new;
CREATE INDEX credit_grants_new ON credit_grants (id) WHERE NOT opened;
DROP INDEX credit_grants_spent;
DROP INDEX credit_grants_open;
