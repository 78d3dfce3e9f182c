-- name: PutInvitation :exec
-- Replaces the link of an earlier mail.
INSERT INTO invitations (tenant_id, member_id, token_hash, created_at, expires_at, mail)
VALUES (@tenant_id, @member_id, @token_hash, @created_at, @expires_at, @mail)
ON CONFLICT (tenant_id, member_id) DO UPDATE SET token_hash = excluded.token_hash,
    created_at = excluded.created_at, expires_at = excluded.expires_at, mail = excluded.mail;

-- name: RecordInvitationMail :exec
UPDATE invitations SET mail = @mail WHERE tenant_id = @tenant_id AND member_id = @member_id AND token_hash = @token_hash;

-- name: InvitationsOf :many
SELECT member_id, created_at, expires_at, mail FROM invitations
WHERE tenant_id = @tenant_id AND member_id = ANY(@member_ids::uuid[]);

-- name: InvitationByToken :one
-- Members who have joined need no invitation, and a suspended tenant cannot be joined.
SELECT i.tenant_id, i.member_id, i.created_at, i.expires_at, i.mail, m.role, m.version, m.created_at AS member_created_at,
    m.updated_at AS member_updated_at, p.id AS person_id, p.email, (p.password_hash IS NOT NULL)::boolean AS has_login, t.slug, t.name
FROM invitations i
JOIN members m ON m.tenant_id = i.tenant_id AND m.id = i.member_id
JOIN people p ON p.id = m.person_id
JOIN tenants t ON t.id = i.tenant_id
WHERE i.token_hash = @token_hash AND i.expires_at > @now AND m.joined_at IS NULL AND t.state = 'active';

-- name: DeleteInvitation :execrows
DELETE FROM invitations WHERE tenant_id = @tenant_id AND member_id = @member_id AND token_hash = @token_hash AND expires_at > @now;
