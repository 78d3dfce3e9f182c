REVOKE SELECT (writer) ON usage_writers FROM weir_app;
