-- A search by state looks for the few subjects that are not active, newest first; without this it goes
-- through all of a tenant's.
CREATE INDEX subjects_state ON subjects (tenant_id, state, id) WHERE state <> 'active';
