DROP INDEX members_invited;
REVOKE DELETE ON people FROM weir_system;
REVOKE UPDATE (alone_since) ON people FROM weir_system;
DROP INDEX people_alone;
ALTER TABLE people DROP COLUMN alone_since;
