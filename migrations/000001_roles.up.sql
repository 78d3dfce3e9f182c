-- Who may do what in this database.
--
-- The login that runs the migrations owns every table and serves no request. The server works as
-- one of two group roles that own nothing, cannot log in and cannot bypass row security:
--
--   weir_app     acts for one tenant. Row security shows it only the rows of the tenant named by
--                the setting weir.tenant_id, which every transaction sets for itself.
--   weir_system  reads across tenants, and only the columns it needs: for loading policies, for
--                finding a key before its tenant is known, and for the operator's pages.
--
-- In production WEIR_MIGRATE_DATABASE_URL names the owner and WEIR_DATABASE_URL a login that is a
-- member of the two roles and of nothing else:
--
--   CREATE ROLE weir_server LOGIN PASSWORD '...' IN ROLE weir_app, weir_system;
--
-- Because row security is forced on the owner too, take backups as a role with BYPASSRLS.

-- Roles belong to the whole cluster, where another database may be migrating at this moment:
-- each statement bears that the other one was first.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['weir_app', 'weir_system'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION', name);
            END IF;
        EXCEPTION WHEN duplicate_object OR unique_violation THEN
            NULL;
        END;
    END LOOP;
END
$$;

-- The migrating login may act as both, so that one URL is enough for development. A superuser
-- may anyway. XX000 is what a grant answers that meets another one of the same row.
DO $$
DECLARE
    name text;
    tries int;
BEGIN
    IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN
        RETURN;
    END IF;
    FOREACH name IN ARRAY ARRAY['weir_app', 'weir_system'] LOOP
        FOR tries IN 1..20 LOOP
            BEGIN
                EXECUTE format('GRANT %I TO %I', name, current_user);
                EXIT;
            EXCEPTION
                WHEN unique_violation OR internal_error THEN
                    IF tries = 20 THEN
                        RAISE;
                    END IF;
                    PERFORM pg_sleep(0.05);
                WHEN insufficient_privilege THEN
                    IF NOT pg_has_role(current_user, name, 'MEMBER') THEN
                        RAISE;
                    END IF;
                    EXIT;
            END;
        END LOOP;
    END LOOP;
END
$$;

-- So that a server whose login is not the owner can tell whether the schema is the one it knows.
GRANT SELECT ON schema_migrations TO weir_app, weir_system;
