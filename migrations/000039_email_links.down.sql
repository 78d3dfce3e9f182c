REVOKE UPDATE (email, last_tenant) ON people FROM weir_system;
ALTER TABLE people DROP COLUMN last_tenant;
DELETE FROM account_links WHERE purpose = 'email';
ALTER TABLE account_links
    DROP CONSTRAINT account_links_purpose_check,
    DROP CONSTRAINT account_links_check,
    ADD CONSTRAINT account_links_purpose_check CHECK (purpose IN ('password', 'signup')),
    ADD CONSTRAINT account_links_check CHECK ((purpose = 'password') = (person_id IS NOT NULL));
