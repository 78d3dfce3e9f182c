-- People who are in no tenant any more, or were invited into one and never came, are forgotten after a
-- while. When somebody was first seen without a tenant is noted here, and cleared when one has them again.
ALTER TABLE people ADD COLUMN alone_since timestamptz; -- null: in a tenant, or not seen yet
CREATE INDEX people_alone ON people (alone_since) WHERE alone_since IS NOT NULL;

GRANT UPDATE (alone_since), DELETE ON people TO weir_system;

-- Invitations that nobody has followed.
CREATE INDEX members_invited ON members (tenant_id, id) WHERE joined_at IS NULL;
