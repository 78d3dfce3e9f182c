-- name: HoldPerson :one
-- Keeps the person from being deleted until the transaction ends, after which they are a member.
UPDATE people SET alone_since = NULL WHERE email = @email RETURNING id;

-- name: StaleInvitations :many
-- Members who have not joined, and whose link (or membership, without a link) is older than a time.
SELECT m.tenant_id, m.id FROM members m LEFT JOIN invitations i ON i.tenant_id = m.tenant_id AND i.member_id = m.id
WHERE m.joined_at IS NULL AND coalesce(i.expires_at, m.updated_at) < @before
    AND (m.tenant_id, m.id) > (@after_tenant::uuid, @after_member::uuid)
ORDER BY m.tenant_id, m.id LIMIT @most;

-- name: InvitationEnd :one
SELECT coalesce(i.expires_at, m.updated_at)::timestamptz AS ended FROM members m
LEFT JOIN invitations i ON i.tenant_id = m.tenant_id AND i.member_id = m.id
WHERE m.tenant_id = @tenant_id AND m.id = @id;

-- name: MarkPeopleAlone :execrows
UPDATE people SET alone_since = @now WHERE alone_since IS NULL AND id IN (
    SELECT p.id FROM people p WHERE p.alone_since IS NULL AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id)
    LIMIT @most FOR UPDATE SKIP LOCKED);

-- name: ClearPeopleAlone :execrows
-- Servers of releases before this column create members without clearing it.
UPDATE people SET alone_since = NULL WHERE alone_since IS NOT NULL AND id IN (
    SELECT p.id FROM people p WHERE p.alone_since IS NOT NULL AND EXISTS (SELECT FROM members m WHERE m.person_id = p.id)
    LIMIT @most FOR UPDATE SKIP LOCKED);

-- name: LockPeopleAlone :many
-- Skips people who are locked because they are becoming members.
SELECT id FROM people WHERE alone_since < @before ORDER BY alone_since LIMIT @most FOR UPDATE SKIP LOCKED;

-- name: DeletePeople :execrows
-- The people are locked, so their memberships cannot change.
DELETE FROM people p WHERE id = ANY(@ids::uuid[]) AND NOT EXISTS (SELECT FROM members m WHERE m.person_id = p.id);
