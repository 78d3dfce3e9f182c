DROP INDEX overrides_end;
