-- The logins of docker-compose.yml, created when its volume is new. The owner migrates and does not
-- serve. The server's login owns nothing, so row-level security restricts it.
CREATE ROLE weir_app NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION;
CREATE ROLE weir_system NOLOGIN NOSUPERUSER NOBYPASSRLS NOCREATEDB NOCREATEROLE NOREPLICATION;
CREATE ROLE weir_owner LOGIN PASSWORD 'weir' IN ROLE weir_app, weir_system;
CREATE ROLE weir_server LOGIN NOINHERIT PASSWORD 'weir' IN ROLE weir_app, weir_system;
ALTER DATABASE weir OWNER TO weir_owner;
