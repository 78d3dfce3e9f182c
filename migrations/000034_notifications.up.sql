-- Notices about a tenant are sent to endpoints that it configures: signed webhooks, from an outbox.
-- A server that knows nothing of them sends none.
CREATE TABLE notification_endpoints (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    url text NOT NULL CHECK (octet_length(url) BETWEEN 1 AND 2048),
    description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 200),
    types text[] NOT NULL CHECK (cardinality(types) <= 100), -- which notifications it gets; empty: all
    enabled boolean NOT NULL,
    disabled_why text NOT NULL DEFAULT '' CHECK (char_length(disabled_why) <= 500), -- if the server disabled it
    -- Encrypted (internal/seal): a JSON array of the secret and, after a rotation, the previous one.
    secrets bytea NOT NULL,
    secret_hint text NOT NULL, -- its last four characters
    previous_until timestamptz, -- until when the previous secret signs, too
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    version bigint NOT NULL,
    -- What follows changes by itself, without a version.
    dropped bigint NOT NULL DEFAULT 0, -- notifications beyond the number that a tenant may have in an hour
    dropped_at timestamptz,
    PRIMARY KEY (tenant_id, id)
);

-- What was notified, with the body exactly as it is signed.
CREATE TABLE notifications (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL, -- the webhook-id of all attempts
    type text NOT NULL CHECK (octet_length(type) BETWEEN 1 AND 100),
    body text NOT NULL CHECK (octet_length(body) <= 65536),
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id)
);
CREATE INDEX notifications_created ON notifications (created_at);
CREATE INDEX notifications_recent ON notifications (tenant_id, created_at);

-- The outbox: one row for each notification and endpoint.
CREATE TABLE notification_deliveries (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    notification_id uuid NOT NULL,
    state text NOT NULL CHECK (state IN ('pending', 'delivered', 'parked')),
    attempts int NOT NULL DEFAULT 0, -- since it was created or replayed
    due_at timestamptz, -- of the next attempt; null: none
    began_at timestamptz NOT NULL, -- when it was created or replayed
    attempted_at timestamptz,
    settled_at timestamptz,
    status int, -- of the latest answer; null: none
    why text NOT NULL DEFAULT '' CHECK (char_length(why) <= 500),
    answer text NOT NULL DEFAULT '' CHECK (octet_length(answer) <= 1024), -- the beginning of its body
    created_at timestamptz NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES notification_endpoints (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, notification_id) REFERENCES notifications (tenant_id, id) ON DELETE CASCADE,
    CHECK ((state = 'pending') = (due_at IS NOT NULL)),
    CHECK ((state = 'pending') = (settled_at IS NULL))
);
CREATE INDEX notification_deliveries_due ON notification_deliveries (tenant_id, endpoint_id, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX notification_deliveries_endpoint ON notification_deliveries (tenant_id, endpoint_id, id);
CREATE INDEX notification_deliveries_notification ON notification_deliveries (tenant_id, notification_id);

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['notification_endpoints', 'notifications', 'notification_deliveries'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_tenant ON %I TO weir_app
            USING (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)
            WITH CHECK (tenant_id = NULLIF(current_setting(''weir.tenant_id'', true), '''')::uuid)', name);
        EXECUTE format('CREATE POLICY send ON %I TO weir_system USING (true) WITH CHECK (true)', name);
    END LOOP;
END
$$;
GRANT SELECT, INSERT, UPDATE, DELETE ON notification_endpoints TO weir_app;
GRANT SELECT, INSERT ON notifications TO weir_app;
GRANT SELECT, INSERT, UPDATE ON notification_deliveries TO weir_app;

-- One server sends the notifications of all tenants, and notices such as those about quotas are
-- written for all tenants.
GRANT SELECT (tenant_id, id, url, types, enabled, secrets, previous_until, dropped), UPDATE (dropped, dropped_at) ON notification_endpoints TO weir_system;
GRANT SELECT, INSERT, DELETE ON notifications TO weir_system;
GRANT SELECT, INSERT, UPDATE ON notification_deliveries TO weir_system;
