-- Reports ignore a server that is known not to run, and need the name of each writer for that.
GRANT SELECT (writer) ON usage_writers TO weir_app;
