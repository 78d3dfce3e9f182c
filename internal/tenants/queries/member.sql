-- name: InsertPerson :execrows
INSERT INTO people (id, email, password_hash) VALUES (@id, @email, @password_hash) ON CONFLICT (email) DO NOTHING;

-- name: PersonByEmail :one
SELECT id, email, password_hash FROM people WHERE email = @email;

-- name: UpdatePassword :exec
UPDATE people SET password_hash = @password_hash, updated_at = now() WHERE id = @id;

-- name: UpsertMember :exec
INSERT INTO members (tenant_id, person_id, role) VALUES (@tenant_id, @person_id, @role)
ON CONFLICT (tenant_id, person_id) DO UPDATE SET role = excluded.role;

-- name: Memberships :many
SELECT m.tenant_id, t.slug, t.name, m.role FROM members m JOIN tenants t ON t.id = m.tenant_id
WHERE m.person_id = @person_id ORDER BY t.slug;
