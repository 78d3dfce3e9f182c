-- Loops find the tenants with due tasks by these indexes, one after the other, and the first tasks
-- of each in order: neither costs more if a tenant has more tasks (queries/turns.sql).
CREATE INDEX billing_events_turn ON billing_events (tenant_id, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX billing_subscriptions_turn ON billing_subscriptions (tenant_id, due_at, endpoint_id, subscription) WHERE due_at IS NOT NULL;
CREATE INDEX billing_endpoints_turn ON billing_endpoints (tenant_id, reconcile_at, id) WHERE reconcile_at IS NOT NULL;
CREATE INDEX subjects_turn ON subjects (tenant_id, next_plan_at, subject) WHERE next_plan_at IS NOT NULL;
CREATE INDEX plan_migrations_turn ON plan_migrations (tenant_id, starts_at, id) WHERE ended_at IS NULL;
CREATE INDEX metered_pushes_turn ON metered_pushes (tenant_id, due_at, id) WHERE due_at IS NOT NULL;

-- A look for events that wait for a subject does not read those that wait for something else.
CREATE INDEX billing_events_waiting ON billing_events (tenant_id, endpoint_id, customer, id) WHERE waits_for = 'subject';

-- Events that were decided long ago are deleted. Parked and failed ones are kept.
CREATE INDEX billing_events_decided ON billing_events (settled_at) WHERE due_at IS NULL AND outcome IN ('applied', 'duplicate', 'stale', 'ignored');
CREATE POLICY purge ON billing_events FOR DELETE TO weir_system
    USING (due_at IS NULL AND outcome IN ('applied', 'duplicate', 'stale', 'ignored'));
GRANT SELECT (settled_at), DELETE ON billing_events TO weir_system;

-- Settled requests for higher limits are deleted some at a time.
GRANT SELECT (tenant_id, id) ON limit_requests TO weir_system;
