-- Billing systems move subjects between plans. An endpoint receives their events, prices say which
-- plan is paid for, and events are kept with what became of them.

-- Where a billing system sends its events. The id stands in a public address and is random.
CREATE TABLE billing_endpoints (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    provider text NOT NULL CHECK (provider IN ('stripe', 'generic')),
    name text NOT NULL DEFAULT '' CHECK (char_length(name) <= 200),
    -- Encrypted (internal/seal) with a key that the database does not have: a JSON array of texts, and a text.
    signing_secrets bytea NOT NULL,
    signing_secret_hints text[] NOT NULL, -- the last four characters of each
    api_key bytea,
    api_key_hint text NOT NULL DEFAULT '',
    subject_from text NOT NULL CHECK (octet_length(subject_from) BETWEEN 1 AND 64),
    grace_days int NOT NULL CHECK (grace_days BETWEEN 0 AND 365),
    fallback_plan_id uuid, -- null: the tenant's default plan
    live boolean, -- whether its events are of live mode; null: not known yet
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version bigint NOT NULL,
    -- What follows changes by itself, without a version.
    last_event_at timestamptz, -- when an event was last stored
    looked_at bigint NOT NULL DEFAULT 0, -- version of the tenant's subjects that parked events were last compared with
    reconciled_at timestamptz, -- when it was last compared with the provider
    reconcile_at timestamptz, -- when it will be; null: it cannot be
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, fallback_plan_id) REFERENCES plans (tenant_id, id)
);
CREATE INDEX billing_endpoints_id ON billing_endpoints (id);
CREATE INDEX billing_endpoints_fallback ON billing_endpoints (tenant_id, fallback_plan_id);
CREATE INDEX billing_endpoints_reconcile ON billing_endpoints (reconcile_at) WHERE reconcile_at IS NOT NULL;

-- Which plan a price, or a product, of the provider stands for.
CREATE TABLE billing_prices (
    tenant_id uuid NOT NULL,
    price text COLLATE "C" NOT NULL CHECK (octet_length(price) BETWEEN 1 AND 255),
    id uuid NOT NULL, -- only for the order of lists: newest first
    endpoint_id uuid NOT NULL,
    plan_id uuid NOT NULL,
    multiply boolean NOT NULL,
    priority int NOT NULL CHECK (priority BETWEEN 0 AND 1000000),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, price),
    UNIQUE (tenant_id, id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans (tenant_id, id)
);
CREATE INDEX billing_prices_endpoint ON billing_prices (tenant_id, endpoint_id);
CREATE INDEX billing_prices_plan ON billing_prices (tenant_id, plan_id);

-- What is known of a customer of the provider.
CREATE TABLE billing_customers (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    customer text COLLATE "C" NOT NULL CHECK (octet_length(customer) BETWEEN 1 AND 255),
    facts jsonb NOT NULL,
    PRIMARY KEY (tenant_id, endpoint_id, customer),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints (tenant_id, id) ON DELETE CASCADE
);

-- What is known of a subscription, as internal/subscription merges it of all events.
CREATE TABLE billing_subscriptions (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    subscription text COLLATE "C" NOT NULL CHECK (octet_length(subscription) BETWEEN 1 AND 256),
    customer text COLLATE "C" NOT NULL DEFAULT '',
    subject text COLLATE "C" NOT NULL DEFAULT '', -- '': not known
    state jsonb NOT NULL,
    due_at timestamptz, -- when a grace period ends; null: nothing changes by itself
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, endpoint_id, subscription),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX billing_subscriptions_customer ON billing_subscriptions (tenant_id, endpoint_id, customer);
CREATE INDEX billing_subscriptions_subject ON billing_subscriptions (tenant_id, endpoint_id, subject);
CREATE INDEX billing_subscriptions_due ON billing_subscriptions (due_at) WHERE due_at IS NOT NULL;

-- Events as they came, with what became of them.
CREATE TABLE billing_events (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    provider_id text COLLATE "C" NOT NULL CHECK (octet_length(provider_id) BETWEEN 1 AND 255),
    type text NOT NULL,
    provider_at timestamptz NOT NULL, -- the provider's own time
    received_at timestamptz NOT NULL,
    body bytea NOT NULL, -- of a duplicate: empty, as it is the first one's
    customer text COLLATE "C" NOT NULL DEFAULT '',
    subscription text COLLATE "C" NOT NULL DEFAULT '',
    subject text COLLATE "C" NOT NULL DEFAULT '',
    outcome text CHECK (outcome IN ('applied', 'duplicate', 'stale', 'parked', 'ignored', 'failed')), -- null: not yet
    why text NOT NULL DEFAULT '',
    settled_at timestamptz,
    due_at timestamptz, -- when to look at it; null: no more
    attempts int NOT NULL DEFAULT 0,
    waits_for text NOT NULL DEFAULT '' CHECK (waits_for IN ('', 'subject', 'price', 'time')), -- of a parked one
    duplicate_of uuid,
    deliveries int NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints (tenant_id, id) ON DELETE CASCADE
);
CREATE UNIQUE INDEX billing_events_once ON billing_events (tenant_id, endpoint_id, provider_id) WHERE duplicate_of IS NULL;
CREATE UNIQUE INDEX billing_events_duplicate ON billing_events (tenant_id, duplicate_of) WHERE duplicate_of IS NOT NULL;
CREATE INDEX billing_events_endpoint ON billing_events (tenant_id, endpoint_id, id);
CREATE INDEX billing_events_due ON billing_events (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX billing_events_parked ON billing_events (tenant_id, endpoint_id, customer) WHERE waits_for <> '';

-- A quantity that was paid for multiplies the numbers that the plan gives.
ALTER TABLE subjects ADD COLUMN multiplier int NOT NULL DEFAULT 1 CHECK (multiplier BETWEEN 1 AND 1000000);
GRANT SELECT (multiplier) ON subjects TO weir_system;
-- A customer of the billing system is found by its name there.
CREATE INDEX subjects_billing_ref ON subjects (tenant_id, billing_ref) WHERE billing_ref <> '';

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['billing_endpoints', 'billing_prices', 'billing_customers', 'billing_subscriptions', 'billing_events'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON %I TO weir_app
            USING (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)
            WITH CHECK (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)', name);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO weir_app', name);
    END LOOP;
END
$$;

-- Whoever sends an event is in no tenant yet, and one server looks for the work of all tenants.
CREATE POLICY read_all ON billing_endpoints FOR SELECT TO weir_system USING (true);
GRANT SELECT (tenant_id, id, provider, signing_secrets, live, looked_at, reconcile_at, version) ON billing_endpoints TO weir_system;
CREATE POLICY read_all ON billing_events FOR SELECT TO weir_system USING (true);
GRANT SELECT (tenant_id, id, endpoint_id, due_at, waits_for, received_at) ON billing_events TO weir_system;
CREATE POLICY read_all ON billing_subscriptions FOR SELECT TO weir_system USING (true);
GRANT SELECT (tenant_id, endpoint_id, subscription, due_at) ON billing_subscriptions TO weir_system;
