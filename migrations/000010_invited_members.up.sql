-- A member is invited first and joins later. Until then the person may have no password, and an
-- invitation alone gives nobody any rights.
ALTER TABLE people ALTER COLUMN password_hash DROP NOT NULL; -- null: cannot log in yet

-- The defaults are for servers that do not know the columns yet: they add members who have joined.
ALTER TABLE members
    ADD COLUMN id uuid NOT NULL DEFAULT gen_random_uuid(), -- what the API calls the member; lists are in its order
    ADD COLUMN joined_at timestamptz DEFAULT now(), -- null: invited
    ADD COLUMN updated_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN version bigint NOT NULL DEFAULT 0,
    ADD UNIQUE (tenant_id, id);

-- A tenant sees who its members are and nothing else of a person, and nobody who is not one.
ALTER TABLE people ENABLE ROW LEVEL SECURITY;
ALTER TABLE people FORCE ROW LEVEL SECURITY;
CREATE POLICY all_people ON people TO weir_system USING (true) WITH CHECK (true);
CREATE POLICY own_members ON people FOR SELECT TO weir_app
    USING (EXISTS (SELECT FROM members m WHERE m.person_id = people.id)); -- members has row security itself
GRANT SELECT (id, email) ON people TO weir_app;
