-- The longest time between two uses of a session since the password was entered. A session that was
-- idle in a tenant with a long limit must not continue in one with a shorter limit, however often it
-- was used in between. Servers of earlier releases do not record it.
ALTER TABLE sessions
    ADD COLUMN longest_idle_ms bigint NOT NULL DEFAULT 0;
GRANT UPDATE (longest_idle_ms) ON sessions TO weir_system;
