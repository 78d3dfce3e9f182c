-- name: InsertDeviceLogin :exec
INSERT INTO device_logins (id, device_hash, user_hash, machine, address, scopes, state, interval_s, created_at, expires_at)
VALUES (@id, @device_hash, @user_hash, @machine, @address, @scopes, 'pending', @interval_s, @created_at, @expires_at);

-- name: DeviceLoginByUser :one
-- A sign-in that waits. One that was approved or denied is not found any more, by any member.
SELECT * FROM device_logins WHERE user_hash = @user_hash AND state = 'pending' AND expires_at > @now;

-- name: ApproveDeviceLogin :execrows
-- Of two members who decide at the same time, one finds nothing.
UPDATE device_logins SET state = 'approved', chosen_tenant = @chosen_tenant, person_id = @person_id
WHERE user_hash = @user_hash AND id = @id AND state = 'pending' AND expires_at > @now;

-- name: DenyDeviceLogin :execrows
UPDATE device_logins SET state = 'denied'
WHERE user_hash = @user_hash AND id = @id AND state = 'pending' AND expires_at > @now;

-- name: LockDeviceLogin :one
SELECT * FROM device_logins WHERE device_hash = @device_hash AND expires_at > @now FOR UPDATE;

-- name: PollDeviceLogin :exec
UPDATE device_logins SET polled_at = @now, interval_s = @interval_s WHERE id = @id;

-- name: DeleteDeviceLogin :exec
DELETE FROM device_logins WHERE id = @id;

-- name: DeleteDeviceLoginsOf :exec
DELETE FROM device_logins WHERE person_id = @person_id;

-- name: PurgeDeviceLogins :execrows
DELETE FROM device_logins WHERE id IN (SELECT o.id FROM device_logins o WHERE o.expires_at <= @now LIMIT @most);
