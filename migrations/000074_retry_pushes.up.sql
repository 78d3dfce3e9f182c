-- A new API key of a billing endpoint makes the tenant's waiting pushes due.
GRANT UPDATE (due_at) ON metered_pushes TO weir_app;
