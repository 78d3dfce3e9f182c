-- name: PersonByID :one
SELECT id, email, password_hash FROM people WHERE id = @id;

-- name: SetFirstPassword :execrows
UPDATE people SET password_hash = @password_hash, updated_at = now() WHERE id = @id AND password_hash IS NULL;

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

-- name: PurgeAccountLinks :exec
DELETE FROM account_links WHERE expires_at <= @now;
