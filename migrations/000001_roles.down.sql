-- The roles stay: they belong to the cluster, and other databases may use them.
REVOKE SELECT ON schema_migrations FROM weir_app, weir_system;
