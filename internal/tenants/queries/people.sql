-- name: HoldPerson :one
-- Until the transaction ends nobody can forget this person, and then they are in a tenant.
UPDATE people SET alone_since = NULL WHERE email = @email RETURNING id;

-- name: StaleInvitations :many
-- Members who have not joined, and whose link (or membership, if there is no link) is older than a time.
SELECT m.tenant_id, m.id FROM members m LEFT JOIN invitations i ON i.tenant_id = m.tenant_id AND i.member_id = m.id
WHERE m.joined_at IS NULL AND coalesce(i.expires_at, m.updated_at) < @before
    AND (m.tenant_id, m.id) > (@after_tenant::uuid, @after_member::uuid)
ORDER BY m.tenant_id, m.id LIMIT @most;

-- name: InvitationEnd :one
SELECT coalesce(i.expires_at, m.updated_at)::timestamptz AS ended FROM members m
LEFT JOIN invitations i ON i.tenant_id = m.tenant_id AND i.member_id = m.id
WHERE m.tenant_id = @tenant_id AND m.id = @id;

-- name: NotePeopleAlone :exec
UPDATE people p SET alone_since = @now WHERE alone_since IS NULL AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id);

-- name: NotePeopleBack :exec
-- Servers from before the column make members without clearing it.
UPDATE people p SET alone_since = NULL WHERE alone_since IS NOT NULL AND EXISTS (SELECT FROM members m WHERE m.person_id = p.id);

-- name: LockPeopleAlone :many
-- People who are becoming members at this moment are locked, and skipped.
SELECT id FROM people WHERE alone_since < @before ORDER BY alone_since LIMIT @most FOR UPDATE SKIP LOCKED;

-- name: ForgetPeople :execrows
-- They are locked, so what is seen here of members holds until the end.
DELETE FROM people p WHERE id = ANY(@ids::uuid[]) AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id);
