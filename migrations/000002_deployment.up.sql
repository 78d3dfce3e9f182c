-- What there is once in a deployment.

-- The number of the newest change to any tenant's configuration. Every such change raises it by
-- an update of this one row, as the last lock that its transaction takes, so changes become
-- visible in the order of their numbers. A sequence could not promise that: a lower number could
-- become visible after a higher one, and whoever had read up to the higher would miss it.
--
-- The epoch names the history that the numbers belong to. Give it a new value after restoring a
-- backup (UPDATE config_version SET epoch = gen_random_uuid()): every server then loads anew.
CREATE TABLE config_version (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch uuid NOT NULL DEFAULT gen_random_uuid(),
    version bigint NOT NULL DEFAULT 1 CHECK (version >= 1)
);
INSERT INTO config_version DEFAULT VALUES;
GRANT SELECT, UPDATE (version) ON config_version TO weir_app, weir_system;

-- Secrets that all servers of a deployment share. counter_key makes the names of counters in
-- Redis unguessable, cursor_key signs the cursors of lists. gen_random_uuid draws from the
-- strong random source; a version 4 UUID carries 122 bits of it.
CREATE TABLE deployment_secrets (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    counter_key bytea NOT NULL CHECK (octet_length(counter_key) = 16),
    cursor_key bytea NOT NULL CHECK (octet_length(cursor_key) = 32)
);
INSERT INTO deployment_secrets (counter_key, cursor_key) VALUES (
    substring(sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())) FROM 1 FOR 16),
    sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
);
GRANT SELECT ON deployment_secrets TO weir_system;
