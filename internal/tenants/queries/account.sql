-- name: PersonByID :one
SELECT id, email, password_hash FROM people WHERE id = @id;

-- name: SetFirstPassword :execrows
UPDATE people SET password_hash = @password_hash, updated_at = now() WHERE id = @id AND password_hash IS NULL;

-- name: HasPassword :one
-- Until the transaction ends, nobody sets another password.
SELECT coalesce(password_hash = @password_hash::text, false)::boolean FROM people WHERE id = @id FOR NO KEY UPDATE;

-- name: InsertAccountLink :exec
INSERT INTO account_links (token_hash, purpose, email, person_id, created_at, expires_at)
VALUES (@token_hash, @purpose, @email, @person_id, @created_at, @expires_at);

-- name: AccountLink :one
SELECT email, person_id FROM account_links WHERE token_hash = @token_hash AND purpose = @purpose AND expires_at > @now;

-- name: TakeAccountLink :one
-- Single-use: of two concurrent callers, one finds nothing.
DELETE FROM account_links WHERE token_hash = @token_hash AND purpose = @purpose AND expires_at > @now RETURNING email, person_id;

-- name: DeleteLinksOfPerson :exec
DELETE FROM account_links WHERE person_id = @person_id;

-- name: DeleteLinksOfEmail :exec
DELETE FROM account_links WHERE email = @email;

-- name: PurgeAccountLinks :execrows
DELETE FROM account_links WHERE token_hash IN (SELECT o.token_hash FROM account_links o WHERE o.expires_at <= @now LIMIT @most);

-- name: DeleteLinksFor :exec
DELETE FROM account_links WHERE person_id = @person_id AND purpose = @purpose;

-- name: EmailLink :one
SELECT l.email, p.id AS person_id, p.email AS old_email FROM account_links l JOIN people p ON p.id = l.person_id
WHERE l.token_hash = @token_hash AND l.purpose = 'email' AND l.expires_at > @now;

-- name: UpdateEmail :execrows
-- Changes nothing if another person has the email.
UPDATE people p SET email = @email, updated_at = now() WHERE p.id = @id AND NOT EXISTS (SELECT FROM people o WHERE o.email = @email);

-- name: LastTenant :one
SELECT last_tenant FROM people WHERE id = @id;

-- name: SetLastTenant :exec
UPDATE people SET last_tenant = @tenant_id::uuid WHERE id = @id AND last_tenant IS DISTINCT FROM @tenant_id;
