DROP TRIGGER keep_own_limit ON rules;
DROP FUNCTION keep_own_limit();
REVOKE SELECT (tenant_id, id) ON counter_changes FROM weir_app;
DROP TABLE counter_change_own_limits;
