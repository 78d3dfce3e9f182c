-- name: InsertPerson :execrows
INSERT INTO people (id, email, password_hash) VALUES (@id, @email, @password_hash) ON CONFLICT (email) DO NOTHING;

-- name: PersonByEmail :one
SELECT id, email, password_hash FROM people WHERE email = @email;

-- name: UpdatePassword :exec
UPDATE people SET password_hash = @password_hash, updated_at = now() WHERE id = @id;

-- name: UpsertMember :one
-- A member who has joined keeps joined_at.
INSERT INTO members (tenant_id, person_id, id, role, joined_at, version)
VALUES (@tenant_id, @person_id, @id, @role, @joined_at, @version)
ON CONFLICT (tenant_id, person_id) DO UPDATE SET role = excluded.role,
    joined_at = coalesce(members.joined_at, excluded.joined_at), version = excluded.version, updated_at = now()
RETURNING *;

-- name: UpdateMemberRole :one
UPDATE members SET role = @role, version = @version, updated_at = now() WHERE tenant_id = @tenant_id AND id = @id
RETURNING *;

-- name: DeleteMember :exec
DELETE FROM members WHERE tenant_id = @tenant_id AND id = @id;

-- name: MemberByID :one
SELECT m.*, p.email FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = @tenant_id AND m.id = @id;

-- name: MemberOfActor :one
-- A member who has joined an active tenant.
SELECT m.role, t.slug FROM members m JOIN tenants t ON t.id = m.tenant_id
WHERE m.tenant_id = @tenant_id AND m.id = @id AND m.joined_at IS NOT NULL AND t.state = 'active';

-- name: MemberByEmail :one
SELECT m.*, p.email FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = @tenant_id AND p.email = @email;

-- name: Members :many
SELECT m.*, p.email FROM members m JOIN people p ON p.id = m.person_id
WHERE m.tenant_id = @tenant_id AND (sqlc.narg(after)::uuid IS NULL OR m.id < sqlc.narg(after))
ORDER BY m.id DESC LIMIT @most;

-- name: IsMember :one
-- Also of invited people.
SELECT EXISTS (SELECT FROM members WHERE tenant_id = @tenant_id AND person_id = @person_id);

-- name: CountMembers :one
SELECT count(*) FROM members WHERE tenant_id = @tenant_id;

-- name: CountOtherOwners :one
-- Other owners who have joined.
SELECT count(*) FROM members
WHERE tenant_id = @tenant_id AND role = 'owner' AND joined_at IS NOT NULL AND id <> @id;

-- name: LockPerson :exec
-- What is counted of the person in all tenants stays valid until the transaction ends. Tenants are
-- locked first.
SELECT FROM people WHERE id = @id FOR NO KEY UPDATE;

-- name: CountJoined :one
SELECT count(*) FROM members WHERE person_id = @person_id AND joined_at IS NOT NULL;

-- name: Memberships :many
SELECT m.tenant_id, t.slug, t.name, t.state AS tenant_state, m.id AS member_id, m.role, m.joined_at,
    s.session_idle_ms, s.session_life_ms, s.confirm_after_ms
FROM members m JOIN tenants t ON t.id = m.tenant_id LEFT JOIN security_settings s ON s.tenant_id = m.tenant_id
WHERE m.person_id = @person_id ORDER BY t.slug;
