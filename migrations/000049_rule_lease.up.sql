-- How long a client may hold units of a leased rule. NULL is the default, 250 ms. There is no check
-- that the rule is leased: a server that does not know the columns may make it strict.
ALTER TABLE rules
    ADD COLUMN lease_text text NOT NULL DEFAULT '',
    ADD COLUMN lease_ms bigint CHECK (lease_ms BETWEEN 50 AND 10000),
    ADD CHECK ((lease_ms IS NULL) = (lease_text = ''));
