REVOKE UPDATE (due_at) ON metered_pushes FROM weir_app;
