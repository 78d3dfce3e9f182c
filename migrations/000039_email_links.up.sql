-- A person changes the email of their login with a link that is mailed to the new address.
ALTER TABLE account_links
    DROP CONSTRAINT account_links_purpose_check,
    DROP CONSTRAINT account_links_check,
    ADD CONSTRAINT account_links_purpose_check CHECK (purpose IN ('password', 'signup', 'email')),
    ADD CONSTRAINT account_links_check CHECK ((purpose <> 'signup') = (person_id IS NOT NULL));

-- The tenant that the person used last, in which the next session begins. It may be a tenant that
-- was deleted, or that the person has left.
ALTER TABLE people ADD COLUMN last_tenant uuid;

GRANT UPDATE (email, last_tenant) ON people TO weir_system;
