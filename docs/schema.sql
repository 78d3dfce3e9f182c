-- The schema after all migrations, for reading. The reasons are in migrations/.
-- Partitions are omitted: they have the same definition as their table.

CREATE TABLE account_links (
    token_hash bytea NOT NULL,
    purpose text NOT NULL,
    email text NOT NULL,
    person_id uuid,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    PRIMARY KEY (token_hash),
    FOREIGN KEY (person_id) REFERENCES people(id) ON DELETE CASCADE,
    CHECK (((email = lower(email)) AND ((octet_length(email) >= 3) AND (octet_length(email) <= 254)))),
    CHECK (((purpose <> 'signup'::text) = (person_id IS NOT NULL))),
    CHECK ((octet_length(token_hash) = 32)),
    CHECK ((purpose = ANY (ARRAY['password'::text, 'signup'::text, 'email'::text])))
);
CREATE INDEX account_links_end ON account_links USING btree (expires_at);
CREATE INDEX account_links_person ON account_links USING btree (person_id);
ALTER TABLE account_links ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_links ON account_links FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT ON account_links TO weir_system;

CREATE TABLE api_keys (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    name text NOT NULL DEFAULT ''::text,
    kind text NOT NULL,
    scopes text[] NOT NULL,
    hash bytea NOT NULL,
    last4 text NOT NULL,
    created_by text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    expires_at timestamp with time zone,
    revoked_at timestamp with time zone,
    last_used_at timestamp with time zone,
    rotated_to uuid,
    version bigint NOT NULL,
    addresses text[] NOT NULL DEFAULT '{}'::text[],
    resources text[] NOT NULL DEFAULT '{}'::text[],
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rotated_to) REFERENCES api_keys(tenant_id, id) ON DELETE SET NULL (rotated_to),
    CHECK ((((cardinality(scopes) >= 1) AND (cardinality(scopes) <= 4)) AND (scopes <@ ARRAY['check'::text, 'read'::text, 'write'::text, 'manage'::text]))),
    CHECK ((cardinality(addresses) <= 20)),
    CHECK ((cardinality(resources) <= 20)),
    CHECK ((char_length(last4) = 4)),
    CHECK ((char_length(name) <= 200)),
    CHECK ((kind = ANY (ARRAY['key'::text, 'op'::text]))),
    CHECK ((octet_length(hash) = 32))
);
CREATE INDEX api_keys_rotated_to ON api_keys USING btree (tenant_id, rotated_to) WHERE (rotated_to IS NOT NULL);
CREATE UNIQUE INDEX api_keys_hash ON api_keys USING btree (hash);
ALTER TABLE api_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY delete_ended ON api_keys FOR DELETE TO weir_system
    USING (((revoked_at IS NOT NULL) OR (expires_at IS NOT NULL)));
CREATE POLICY own_tenant ON api_keys FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON api_keys FOR SELECT TO weir_system
    USING (true);
CREATE POLICY touch_all ON api_keys FOR UPDATE TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE ON api_keys TO weir_system;
GRANT INSERT, SELECT ON api_keys TO weir_app;
GRANT SELECT (addresses, expires_at, hash, id, kind, last_used_at, name, resources, revoked_at, rotated_to, scopes, tenant_id, version) ON api_keys TO weir_system;
GRANT UPDATE (addresses, expires_at, name, resources, revoked_at, rotated_to, scopes, version) ON api_keys TO weir_app;
GRANT UPDATE (last_used_at) ON api_keys TO weir_system;

CREATE TABLE audit (
    tenant_id uuid NOT NULL,
    sequence bigint NOT NULL,
    id uuid NOT NULL,
    at timestamp with time zone NOT NULL,
    actor_kind text NOT NULL,
    actor_id uuid,
    actor_name text NOT NULL,
    address text NOT NULL,
    user_agent text NOT NULL,
    request_id text NOT NULL,
    action text NOT NULL,
    kind text NOT NULL,
    target text COLLATE "C" NOT NULL,
    before json,
    after json,
    reason text NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (tenant_id, sequence),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((action ~ '^[a-z_]{1,32}$'::text)),
    CHECK ((kind ~ '^[a-z_]{1,32}$'::text)),
    CHECK ((octet_length(hash) = 32)),
    CHECK ((sequence > 0))
);
CREATE INDEX audit_action ON audit USING btree (tenant_id, action, sequence);
CREATE INDEX audit_actor ON audit USING btree (tenant_id, actor_name, sequence);
CREATE INDEX audit_at ON audit USING btree (tenant_id, at);
CREATE INDEX audit_target ON audit USING btree (tenant_id, kind, target, sequence);
ALTER TABLE audit ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY old_rows_removed ON audit FOR DELETE TO weir_system
    USING (true);
CREATE POLICY old_rows_seen ON audit FOR SELECT TO weir_system
    USING (true);
CREATE POLICY own_tenant ON audit FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE ON audit TO weir_system;
GRANT INSERT, SELECT ON audit TO weir_app;
GRANT SELECT (at, hash, sequence, tenant_id) ON audit TO weir_system;

CREATE TABLE audit_heads (
    tenant_id uuid NOT NULL,
    sequence bigint NOT NULL,
    hash bytea NOT NULL,
    removed_sequence bigint NOT NULL DEFAULT 0,
    removed_hash bytea NOT NULL DEFAULT decode(repeat('00'::text, 32), 'hex'::text),
    day date NOT NULL DEFAULT '1970-01-01'::date,
    day_bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((removed_sequence >= 0) AND (removed_sequence <= sequence))),
    CHECK ((day_bytes >= 0)),
    CHECK ((octet_length(hash) = 32)),
    CHECK ((octet_length(removed_hash) = 32)),
    CHECK ((sequence >= 0))
);
ALTER TABLE audit_heads ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_heads ON audit_heads FOR SELECT TO weir_system
    USING (true);
CREATE POLICY marks ON audit_heads FOR UPDATE TO weir_system
    USING (true)
    WITH CHECK (true);
CREATE POLICY own_tenant ON audit_heads FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT INSERT, SELECT ON audit_heads TO weir_app;
GRANT SELECT ON audit_heads TO weir_system;
GRANT UPDATE (day, day_bytes, hash, sequence) ON audit_heads TO weir_app;
GRANT UPDATE (removed_hash, removed_sequence) ON audit_heads TO weir_system;

CREATE TABLE billing_customers (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    customer text COLLATE "C" NOT NULL,
    facts jsonb NOT NULL,
    PRIMARY KEY (tenant_id, endpoint_id, customer),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints(tenant_id, id) ON DELETE CASCADE,
    CHECK (((octet_length(customer) >= 1) AND (octet_length(customer) <= 255)))
);
ALTER TABLE billing_customers ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_customers FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_customers TO weir_app;

CREATE TABLE billing_days (
    tenant_id uuid NOT NULL,
    day date NOT NULL,
    events bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (tenant_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((bytes >= 0)),
    CHECK ((events >= 0))
);
ALTER TABLE billing_days ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_days FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT INSERT, SELECT, UPDATE ON billing_days TO weir_app;

CREATE TABLE billing_endpoints (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    provider text NOT NULL,
    name text NOT NULL DEFAULT ''::text,
    signing_secrets bytea NOT NULL,
    signing_secret_hints text[] NOT NULL,
    api_key bytea,
    api_key_hint text NOT NULL DEFAULT ''::text,
    subject_from text NOT NULL,
    grace_days integer NOT NULL,
    fallback_plan_id uuid,
    live boolean,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    version bigint NOT NULL,
    last_event_at timestamp with time zone,
    looked_at bigint NOT NULL DEFAULT 0,
    reconciled_at timestamp with time zone,
    reconcile_at timestamp with time zone,
    reconcile_failed_at timestamp with time zone,
    reconcile_error text NOT NULL DEFAULT ''::text,
    refused_at timestamp with time zone,
    refused_why text NOT NULL DEFAULT ''::text,
    purchases_compared_at timestamp with time zone,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, fallback_plan_id) REFERENCES plans(tenant_id, id),
    CHECK (((grace_days >= 0) AND (grace_days <= 365))),
    CHECK (((octet_length(subject_from) >= 1) AND (octet_length(subject_from) <= 64))),
    CHECK ((char_length(name) <= 200)),
    CHECK ((provider = ANY (ARRAY['stripe'::text, 'generic'::text])))
);
CREATE INDEX billing_endpoints_fallback ON billing_endpoints USING btree (tenant_id, fallback_plan_id);
CREATE INDEX billing_endpoints_id ON billing_endpoints USING btree (id);
CREATE INDEX billing_endpoints_reconcile ON billing_endpoints USING btree (reconcile_at) WHERE (reconcile_at IS NOT NULL);
CREATE INDEX billing_endpoints_turn ON billing_endpoints USING btree (tenant_id, reconcile_at, id) WHERE (reconcile_at IS NOT NULL);
ALTER TABLE billing_endpoints ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_endpoints FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON billing_endpoints FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_endpoints TO weir_app;
GRANT SELECT (id, live, looked_at, name, provider, reconcile_at, signing_secrets, tenant_id, version) ON billing_endpoints TO weir_system;

CREATE TABLE billing_events (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    provider_id text COLLATE "C" NOT NULL,
    type text NOT NULL,
    provider_at timestamp with time zone NOT NULL,
    received_at timestamp with time zone NOT NULL,
    body bytea NOT NULL,
    customer text COLLATE "C" NOT NULL DEFAULT ''::text,
    subscription text COLLATE "C" NOT NULL DEFAULT ''::text,
    subject text COLLATE "C" NOT NULL DEFAULT ''::text,
    outcome text,
    why text NOT NULL DEFAULT ''::text,
    settled_at timestamp with time zone,
    due_at timestamp with time zone,
    attempts integer NOT NULL DEFAULT 0,
    waits_for text NOT NULL DEFAULT ''::text,
    duplicate_of uuid,
    deliveries integer NOT NULL DEFAULT 1,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints(tenant_id, id) ON DELETE CASCADE,
    CHECK (((octet_length(provider_id) >= 1) AND (octet_length(provider_id) <= 255))),
    CHECK ((outcome = ANY (ARRAY['applied'::text, 'duplicate'::text, 'stale'::text, 'parked'::text, 'ignored'::text, 'failed'::text]))),
    CHECK ((waits_for = ANY (ARRAY[''::text, 'subject'::text, 'price'::text, 'time'::text, 'subscription'::text])))
);
CREATE INDEX billing_events_decided ON billing_events USING btree (settled_at) WHERE ((due_at IS NULL) AND (outcome = ANY (ARRAY['applied'::text, 'duplicate'::text, 'stale'::text, 'ignored'::text])));
CREATE INDEX billing_events_due ON billing_events USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX billing_events_endpoint ON billing_events USING btree (tenant_id, endpoint_id, id);
CREATE INDEX billing_events_of_subscription ON billing_events USING btree (tenant_id, endpoint_id, subscription, id) WHERE (waits_for = ANY (ARRAY['subject'::text, 'subscription'::text]));
CREATE INDEX billing_events_scheduled ON billing_events USING btree (tenant_id, due_at, subject, id) WHERE (waits_for = 'time'::text);
CREATE INDEX billing_events_turn ON billing_events USING btree (tenant_id, due_at, id) WHERE (due_at IS NOT NULL);
CREATE INDEX billing_events_unapplied ON billing_events USING btree (tenant_id, outcome, id) WHERE (outcome = ANY (ARRAY['parked'::text, 'failed'::text]));
CREATE INDEX billing_events_unapplied_at ON billing_events USING btree (settled_at) WHERE (outcome = ANY (ARRAY['parked'::text, 'failed'::text]));
CREATE INDEX billing_events_unapplied_of_endpoint ON billing_events USING btree (endpoint_id, received_at) WHERE ((outcome = ANY (ARRAY['parked'::text, 'failed'::text])) AND (waits_for <> 'time'::text));
CREATE INDEX billing_events_waiting ON billing_events USING btree (tenant_id, endpoint_id, waits_for, customer, id) WHERE (waits_for = ANY (ARRAY['subject'::text, 'price'::text]));
CREATE UNIQUE INDEX billing_events_duplicate ON billing_events USING btree (tenant_id, duplicate_of) WHERE (duplicate_of IS NOT NULL);
CREATE UNIQUE INDEX billing_events_once ON billing_events USING btree (tenant_id, endpoint_id, provider_id) WHERE (duplicate_of IS NULL);
ALTER TABLE billing_events ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_events FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY purge ON billing_events FOR DELETE TO weir_system
    USING (((due_at IS NULL) AND (outcome = ANY (ARRAY['applied'::text, 'duplicate'::text, 'stale'::text, 'ignored'::text]))));
CREATE POLICY purge_unapplied ON billing_events FOR DELETE TO weir_system
    USING ((((due_at IS NULL) OR (waits_for = 'time'::text)) AND (outcome = ANY (ARRAY['parked'::text, 'failed'::text]))));
CREATE POLICY read_all ON billing_events FOR SELECT TO weir_system
    USING (true);
GRANT DELETE ON billing_events TO weir_system;
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_events TO weir_app;
GRANT SELECT (due_at, endpoint_id, id, outcome, received_at, settled_at, tenant_id, waits_for) ON billing_events TO weir_system;

CREATE TABLE billing_notices (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    sent_at timestamp with time zone NOT NULL,
    settled_at timestamp with time zone,
    PRIMARY KEY (tenant_id, endpoint_id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints(tenant_id, id) ON DELETE CASCADE
);
ALTER TABLE billing_notices ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_notices FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY record ON billing_notices FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_notices TO weir_app;
GRANT INSERT, SELECT, UPDATE ON billing_notices TO weir_system;

CREATE TABLE billing_payments (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    payment text COLLATE "C" NOT NULL,
    purchase text COLLATE "C" NOT NULL DEFAULT ''::text,
    refunded boolean NOT NULL DEFAULT false,
    seen_at timestamp with time zone NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, endpoint_id, payment),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints(tenant_id, id) ON DELETE CASCADE,
    CHECK (((octet_length(payment) >= 1) AND (octet_length(payment) <= 255))),
    CHECK ((octet_length(purchase) <= 255))
);
CREATE INDEX billing_payments_age ON billing_payments USING btree (seen_at);
CREATE INDEX billing_payments_purchase ON billing_payments USING btree (tenant_id, endpoint_id, purchase) WHERE (purchase <> ''::text);
ALTER TABLE billing_payments ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_payments FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY purge ON billing_payments FOR ALL TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_payments TO weir_app;
GRANT DELETE, SELECT ON billing_payments TO weir_system;

CREATE TABLE billing_prices (
    tenant_id uuid NOT NULL,
    price text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    plan_id uuid,
    multiply boolean NOT NULL,
    priority integer NOT NULL,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    version bigint NOT NULL,
    rule_id uuid,
    units bigint,
    expires_days integer,
    PRIMARY KEY (tenant_id, price),
    UNIQUE (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints(tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans(tenant_id, id),
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules(tenant_id, id),
    CHECK (((expires_days >= 1) AND (expires_days <= 3650))),
    CHECK (((expires_days IS NULL) OR (rule_id IS NOT NULL))),
    CHECK (((octet_length(price) >= 1) AND (octet_length(price) <= 255))),
    CHECK (((plan_id IS NULL) <> (rule_id IS NULL))),
    CHECK (((priority >= 0) AND (priority <= 1000000))),
    CHECK (((rule_id IS NULL) = (units IS NULL))),
    CHECK (((units >= 1) AND (units <= '1000000000000000'::bigint)))
);
CREATE INDEX billing_prices_endpoint ON billing_prices USING btree (tenant_id, endpoint_id);
CREATE INDEX billing_prices_plan ON billing_prices USING btree (tenant_id, plan_id);
CREATE INDEX billing_prices_rule ON billing_prices USING btree (tenant_id, rule_id);
ALTER TABLE billing_prices ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_prices FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_prices TO weir_app;

CREATE TABLE billing_subscriptions (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    subscription text COLLATE "C" NOT NULL,
    customer text COLLATE "C" NOT NULL DEFAULT ''::text,
    subject text COLLATE "C" NOT NULL DEFAULT ''::text,
    state jsonb NOT NULL,
    due_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL,
    standing smallint,
    priority integer NOT NULL DEFAULT 0,
    created bigint,
    PRIMARY KEY (tenant_id, endpoint_id, subscription),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints(tenant_id, id) ON DELETE CASCADE,
    CHECK (((octet_length(subscription) >= 1) AND (octet_length(subscription) <= 256))),
    CHECK (((standing >= 0) AND (standing <= 4)))
);
CREATE INDEX billing_subscriptions_customer ON billing_subscriptions USING btree (tenant_id, endpoint_id, customer);
CREATE INDEX billing_subscriptions_due ON billing_subscriptions USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX billing_subscriptions_of_subject ON billing_subscriptions USING btree (tenant_id, subject) WHERE (customer <> ''::text);
CREATE INDEX billing_subscriptions_subject ON billing_subscriptions USING btree (tenant_id, endpoint_id, subject);
CREATE INDEX billing_subscriptions_turn ON billing_subscriptions USING btree (tenant_id, due_at, endpoint_id, subscription) WHERE (due_at IS NOT NULL);
ALTER TABLE billing_subscriptions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_subscriptions FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON billing_subscriptions FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON billing_subscriptions TO weir_app;
GRANT SELECT (due_at, endpoint_id, subscription, tenant_id) ON billing_subscriptions TO weir_system;

CREATE TABLE config_version (
    singleton boolean NOT NULL DEFAULT true,
    epoch uuid NOT NULL DEFAULT gen_random_uuid(),
    version bigint NOT NULL DEFAULT 1,
    PRIMARY KEY (singleton),
    CHECK ((version >= 1)),
    CHECK (singleton)
);
CREATE TRIGGER note_restored_pushes AFTER UPDATE OF epoch ON config_version FOR EACH ROW WHEN ((old.epoch <> new.epoch)) EXECUTE FUNCTION note_restored_pushes();
CREATE TRIGGER renumber_counter_changes AFTER UPDATE OF epoch ON config_version FOR EACH ROW WHEN ((old.epoch <> new.epoch)) EXECUTE FUNCTION renumber_counter_changes();
GRANT SELECT ON config_version TO weir_app;
GRANT SELECT ON config_version TO weir_system;
GRANT UPDATE (version) ON config_version TO weir_app;
GRANT UPDATE (version) ON config_version TO weir_system;

CREATE TABLE counter_change_limits (
    tenant_id uuid NOT NULL,
    id bigint NOT NULL,
    plan_id uuid NOT NULL,
    number integer NOT NULL,
    plan_version bigint NOT NULL,
    rule_ids uuid[] NOT NULL,
    limit_units bigint[] NOT NULL,
    burst_units bigint[] NOT NULL,
    overages text[] NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, plan_id, number, plan_version),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE
);
ALTER TABLE counter_change_limits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY carry_out ON counter_change_limits FOR ALL TO weir_system
    USING (true);
CREATE POLICY own_tenant ON counter_change_limits FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, SELECT ON counter_change_limits TO weir_system;
GRANT INSERT, SELECT ON counter_change_limits TO weir_app;

CREATE TABLE counter_change_own_limits (
    tenant_id uuid NOT NULL,
    rule_id uuid NOT NULL,
    until bigint NOT NULL,
    limit_units bigint NOT NULL,
    burst_units bigint,
    overage text,
    PRIMARY KEY (tenant_id, rule_id, until),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE
);
ALTER TABLE counter_change_own_limits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY carry_out ON counter_change_own_limits FOR ALL TO weir_system
    USING (true);
CREATE POLICY own_tenant ON counter_change_own_limits FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, SELECT ON counter_change_own_limits TO weir_system;
GRANT INSERT, SELECT ON counter_change_own_limits TO weir_app;

CREATE TABLE counter_changes (
    tenant_id uuid NOT NULL,
    id bigint NOT NULL,
    subject text COLLATE "C" NOT NULL,
    action text NOT NULL,
    from_plan text NOT NULL,
    to_plan text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    from_version integer NOT NULL DEFAULT 0,
    to_version integer NOT NULL DEFAULT 0,
    from_multiplier integer NOT NULL DEFAULT 0,
    to_multiplier integer NOT NULL DEFAULT 0,
    from_limits bigint,
    to_limits bigint,
    approved jsonb,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((action = ANY (ARRAY['reset'::text, 'scale'::text]))),
    CHECK ((from_multiplier >= 0)),
    CHECK ((to_multiplier >= 0))
);
CREATE INDEX counter_changes_order ON counter_changes USING btree (id);
CREATE TRIGGER note_approved_limits BEFORE INSERT ON counter_changes FOR EACH ROW EXECUTE FUNCTION note_approved_limits();
ALTER TABLE counter_changes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY carry_out ON counter_changes FOR ALL TO weir_system
    USING (true);
CREATE POLICY own_tenant ON counter_changes FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, SELECT ON counter_changes TO weir_system;
GRANT INSERT ON counter_changes TO weir_app;
GRANT SELECT (id, tenant_id) ON counter_changes TO weir_app;

CREATE TABLE credit_grants (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    rule_id uuid NOT NULL,
    units bigint NOT NULL,
    spent bigint NOT NULL DEFAULT 0,
    expires_at timestamp with time zone,
    reference text COLLATE "C" NOT NULL DEFAULT ''::text,
    reason text NOT NULL DEFAULT ''::text,
    created_by text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL,
    revoked_by text NOT NULL DEFAULT ''::text,
    revoked_at timestamp with time zone,
    opened boolean NOT NULL DEFAULT false,
    spent_at timestamp with time zone,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules(tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, subject) REFERENCES subjects(tenant_id, subject) ON DELETE CASCADE,
    CHECK (((spent >= 0) AND (spent <= units))),
    CHECK (((units >= 1) AND (units <= '1000000000000000'::bigint))),
    CHECK ((char_length(reason) <= 500)),
    CHECK ((expires_at < '10000-01-01 00:00:00+00'::timestamp with time zone)),
    CHECK ((octet_length(reference) <= 256))
);
CREATE INDEX credit_grants_age ON credit_grants USING btree (created_at);
CREATE INDEX credit_grants_new ON credit_grants USING btree (tenant_id, id) WHERE (NOT opened);
CREATE INDEX credit_grants_open ON credit_grants USING btree (tenant_id, subject, expires_at, rule_id) WHERE ((revoked_at IS NULL) AND (spent_at IS NULL));
CREATE INDEX credit_grants_rule ON credit_grants USING btree (tenant_id, rule_id);
CREATE INDEX credit_grants_spent ON credit_grants USING btree (tenant_id, subject, rule_id, spent_at) WHERE ((revoked_at IS NULL) AND (spent_at IS NOT NULL));
CREATE INDEX credit_grants_subject ON credit_grants USING btree (tenant_id, subject, id);
CREATE UNIQUE INDEX credit_grants_reference ON credit_grants USING btree (tenant_id, reference) WHERE (reference <> ''::text);
ALTER TABLE credit_grants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON credit_grants FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY settle ON credit_grants FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE ON credit_grants TO weir_system;
GRANT INSERT, SELECT ON credit_grants TO weir_app;
GRANT SELECT (created_at, expires_at, id, opened, reference, revoked_at, rule_id, spent, spent_at, subject, tenant_id, units) ON credit_grants TO weir_system;
GRANT UPDATE (opened, spent, spent_at) ON credit_grants TO weir_system;
GRANT UPDATE (revoked_at, revoked_by) ON credit_grants TO weir_app;

CREATE TABLE deleted_tenants (
    id uuid NOT NULL,
    slug text NOT NULL,
    deleted_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (id)
);
CREATE INDEX deleted_tenants_version ON deleted_tenants USING btree (version);
GRANT INSERT, SELECT ON deleted_tenants TO weir_system;

CREATE TABLE deployment_secrets (
    singleton boolean NOT NULL DEFAULT true,
    counter_key bytea NOT NULL,
    cursor_key bytea NOT NULL,
    PRIMARY KEY (singleton),
    CHECK ((octet_length(counter_key) = 16)),
    CHECK ((octet_length(cursor_key) = 32)),
    CHECK (singleton)
);
GRANT SELECT ON deployment_secrets TO weir_system;

CREATE TABLE device_logins (
    id uuid NOT NULL,
    device_hash bytea NOT NULL,
    user_hash bytea NOT NULL,
    machine text NOT NULL,
    address text NOT NULL,
    scopes text[] NOT NULL,
    state text NOT NULL,
    chosen_tenant uuid,
    person_id uuid,
    interval_s integer NOT NULL,
    polled_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (device_hash),
    UNIQUE (user_hash),
    FOREIGN KEY (person_id) REFERENCES people(id) ON DELETE CASCADE,
    CHECK (((cardinality(scopes) >= 1) AND (cardinality(scopes) <= 4))),
    CHECK (((char_length(machine) >= 1) AND (char_length(machine) <= 100))),
    CHECK (((interval_s >= 1) AND (interval_s <= 600))),
    CHECK (((state = 'approved'::text) = (chosen_tenant IS NOT NULL))),
    CHECK (((state = 'approved'::text) = (person_id IS NOT NULL))),
    CHECK ((octet_length(device_hash) = 32)),
    CHECK ((octet_length(user_hash) = 32)),
    CHECK ((state = ANY (ARRAY['pending'::text, 'approved'::text, 'denied'::text])))
);
CREATE INDEX device_logins_end ON device_logins USING btree (expires_at);
CREATE INDEX device_logins_person ON device_logins USING btree (person_id);
ALTER TABLE device_logins ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_logins ON device_logins FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON device_logins TO weir_system;

CREATE TABLE ended_meters (
    tenant_id uuid NOT NULL,
    rule text COLLATE "C" NOT NULL,
    until timestamp with time zone NOT NULL,
    meter_event text NOT NULL,
    kind text NOT NULL,
    PRIMARY KEY (tenant_id, rule, until),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((kind = ANY (ARRAY['units'::text, 'overage'::text])))
);
CREATE INDEX ended_meters_until ON ended_meters USING btree (until);
ALTER TABLE ended_meters ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON ended_meters FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY purge ON ended_meters FOR DELETE TO weir_system
    USING (((until <= ( SELECT s.pushes_until
   FROM metering_state s)) OR (NOT (EXISTS ( SELECT
   FROM tenants t
  WHERE (t.id = ended_meters.tenant_id))))));
CREATE POLICY read_all ON ended_meters FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, SELECT ON ended_meters TO weir_system;
GRANT INSERT ON ended_meters TO weir_app;
GRANT SELECT (rule, tenant_id, until) ON ended_meters TO weir_app;

CREATE TABLE idempotency_keys (
    tenant_id uuid NOT NULL,
    key text COLLATE "C" NOT NULL,
    request_hash bytea NOT NULL,
    state text NOT NULL,
    attempt uuid NOT NULL,
    status integer,
    header jsonb,
    body bytea,
    started_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id, key),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((octet_length(key) >= 1) AND (octet_length(key) <= 255))),
    CHECK (((state = 'finished'::text) = (status IS NOT NULL))),
    CHECK (((status >= 200) AND (status <= 599))),
    CHECK ((octet_length(request_hash) = 32)),
    CHECK ((state = ANY (ARRAY['in_progress'::text, 'finished'::text])))
);
CREATE INDEX idempotency_keys_expiry ON idempotency_keys USING btree (expires_at);
ALTER TABLE idempotency_keys ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON idempotency_keys FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY purge_expired ON idempotency_keys FOR DELETE TO weir_system
    USING ((expires_at < now()));
CREATE POLICY purge_expired_read ON idempotency_keys FOR SELECT TO weir_system
    USING ((expires_at < now()));
GRANT DELETE ON idempotency_keys TO weir_system;
GRANT DELETE, INSERT, SELECT, UPDATE ON idempotency_keys TO weir_app;
GRANT SELECT (expires_at, key, tenant_id) ON idempotency_keys TO weir_system;

CREATE TABLE invitations (
    tenant_id uuid NOT NULL,
    member_id uuid NOT NULL,
    token_hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    mail text NOT NULL,
    PRIMARY KEY (tenant_id, member_id),
    FOREIGN KEY (tenant_id, member_id) REFERENCES members(tenant_id, id) ON DELETE CASCADE,
    CHECK ((mail = ANY (ARRAY['off'::text, 'waiting'::text, 'sent'::text, 'failed'::text]))),
    CHECK ((octet_length(token_hash) = 32))
);
CREATE INDEX invitations_token ON invitations USING btree (token_hash);
ALTER TABLE invitations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON invitations FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON invitations FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON invitations TO weir_app;
GRANT SELECT ON invitations TO weir_system;

CREATE TABLE limit_requests (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    rule_id uuid NOT NULL,
    had bigint NOT NULL,
    asked bigint NOT NULL,
    note text NOT NULL,
    state text NOT NULL,
    automatic boolean NOT NULL DEFAULT false,
    granted bigint,
    granted_until timestamp with time zone,
    answer text NOT NULL DEFAULT ''::text,
    settled_by text NOT NULL DEFAULT ''::text,
    settled_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules(tenant_id, id) ON DELETE CASCADE,
    CHECK (((granted IS NULL) = (granted_until IS NULL))),
    CHECK (((octet_length(subject) >= 1) AND (octet_length(subject) <= 256))),
    CHECK (((state = 'approved'::text) = (granted IS NOT NULL))),
    CHECK (((state = 'open'::text) = (settled_at IS NULL))),
    CHECK ((asked > had)),
    CHECK ((char_length(answer) <= 500)),
    CHECK ((char_length(note) <= 500)),
    CHECK ((had > 0)),
    CHECK ((state = ANY (ARRAY['open'::text, 'approved'::text, 'refused'::text])))
);
CREATE INDEX limit_requests_open ON limit_requests USING btree (tenant_id, id) WHERE (state = 'open'::text);
CREATE INDEX limit_requests_rule ON limit_requests USING btree (tenant_id, rule_id);
CREATE INDEX limit_requests_settled ON limit_requests USING btree (settled_at) WHERE (settled_at IS NOT NULL);
CREATE INDEX limit_requests_subject ON limit_requests USING btree (tenant_id, subject, created_at);
CREATE UNIQUE INDEX limit_requests_one_open ON limit_requests USING btree (tenant_id, subject, rule_id) WHERE (state = 'open'::text);
ALTER TABLE limit_requests ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY clean ON limit_requests FOR ALL TO weir_system
    USING (true);
CREATE POLICY own_tenant ON limit_requests FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE ON limit_requests TO weir_system;
GRANT INSERT, SELECT ON limit_requests TO weir_app;
GRANT SELECT (id, settled_at, tenant_id) ON limit_requests TO weir_system;
GRANT UPDATE (answer, automatic, granted, granted_until, settled_at, settled_by, state) ON limit_requests TO weir_app;

CREATE TABLE members (
    tenant_id uuid NOT NULL,
    person_id uuid NOT NULL,
    role text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    joined_at timestamp with time zone DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, person_id),
    UNIQUE (tenant_id, id),
    FOREIGN KEY (person_id) REFERENCES people(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((role = ANY (ARRAY['owner'::text, 'admin'::text, 'editor'::text, 'support'::text, 'viewer'::text])))
);
CREATE INDEX members_invited ON members USING btree (tenant_id, id) WHERE (joined_at IS NULL);
CREATE INDEX members_person ON members USING btree (person_id);
ALTER TABLE members ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON members FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON members FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON members TO weir_app;
GRANT SELECT ON members TO weir_system;

CREATE TABLE metered_push_problems (
    tenant_id uuid NOT NULL,
    push_id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    units bigint NOT NULL,
    outcome text NOT NULL,
    why text NOT NULL,
    unanswered_at timestamp with time zone,
    PRIMARY KEY (tenant_id, push_id, subject),
    FOREIGN KEY (tenant_id, push_id) REFERENCES metered_pushes(tenant_id, id) ON DELETE CASCADE,
    CHECK ((outcome = ANY (ARRAY['parked'::text, 'failed'::text])))
);
ALTER TABLE metered_push_problems ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON metered_push_problems FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON metered_push_problems FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON metered_push_problems TO weir_system;
GRANT SELECT ON metered_push_problems TO weir_app;

CREATE TABLE metered_pushes (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    start timestamp with time zone NOT NULL,
    rule text COLLATE "C" NOT NULL,
    meter_event text NOT NULL,
    kind text NOT NULL,
    after_subject text COLLATE "C" NOT NULL DEFAULT ''::text,
    pushed bigint NOT NULL DEFAULT 0,
    pushed_units bigint NOT NULL DEFAULT 0,
    complete boolean NOT NULL DEFAULT false,
    why text NOT NULL DEFAULT ''::text,
    attempts integer NOT NULL DEFAULT 0,
    unanswered_at timestamp with time zone,
    due_at timestamp with time zone,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    unanswered_until text COLLATE "C" NOT NULL DEFAULT ''::text,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, start, rule),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((kind = ANY (ARRAY['units'::text, 'overage'::text])))
);
CREATE INDEX metered_pushes_due ON metered_pushes USING btree (due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX metered_pushes_turn ON metered_pushes USING btree (tenant_id, due_at, id) WHERE (due_at IS NOT NULL);
ALTER TABLE metered_pushes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON metered_pushes FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON metered_pushes FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON metered_pushes TO weir_system;
GRANT SELECT ON metered_pushes TO weir_app;
GRANT UPDATE (due_at) ON metered_pushes TO weir_app;

CREATE TABLE metered_totals (
    tenant_id uuid NOT NULL,
    start timestamp with time zone NOT NULL,
    rule text COLLATE "C" NOT NULL,
    units bigint NOT NULL,
    overage_units bigint NOT NULL,
    checks bigint NOT NULL,
    late_units bigint NOT NULL,
    unattributed_units bigint NOT NULL,
    free_units bigint NOT NULL DEFAULT 0,
    billed_units bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, start, rule),
    CHECK ((billed_units >= 0)),
    CHECK ((checks >= 0)),
    CHECK ((free_units >= 0)),
    CHECK ((late_units >= 0)),
    CHECK ((overage_units >= 0)),
    CHECK ((unattributed_units >= 0)),
    CHECK ((units >= 0))
);
CREATE INDEX metered_totals_start ON metered_totals USING btree (start);
ALTER TABLE metered_totals ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON metered_totals FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON metered_totals FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON metered_totals TO weir_system;
GRANT SELECT ON metered_totals TO weir_app;

CREATE TABLE metered_usage (
    tenant_id uuid NOT NULL,
    start timestamp with time zone NOT NULL,
    subject text COLLATE "C" NOT NULL,
    rule text COLLATE "C" NOT NULL,
    units bigint NOT NULL,
    overage_units bigint NOT NULL,
    checks bigint NOT NULL,
    late_units bigint NOT NULL,
    free_units bigint NOT NULL DEFAULT 0,
    billed_units bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant_id, start, subject, rule),
    CHECK ((((EXTRACT(epoch FROM start))::bigint % (3600)::bigint) = 0)),
    CHECK ((billed_units >= 0)),
    CHECK ((checks >= 0)),
    CHECK ((free_units >= 0)),
    CHECK ((late_units >= 0)),
    CHECK ((overage_units >= 0)),
    CHECK ((subject <> ''::text)),
    CHECK ((units >= 0))
);
CREATE INDEX metered_usage_start ON metered_usage USING brin (start);
CREATE INDEX metered_usage_subject ON metered_usage USING btree (tenant_id, subject, rule, start);
ALTER TABLE metered_usage ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON metered_usage FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON metered_usage FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON metered_usage TO weir_system;
GRANT SELECT ON metered_usage TO weir_app;

CREATE TABLE metering_gaps (
    writer uuid NOT NULL,
    from_at timestamp with time zone NOT NULL,
    to_at timestamp with time zone NOT NULL,
    closed_at timestamp with time zone,
    PRIMARY KEY (writer)
);
CREATE INDEX metering_gaps_to ON metering_gaps USING btree (to_at);
GRANT DELETE, INSERT, SELECT, UPDATE ON metering_gaps TO weir_system;
GRANT SELECT ON metering_gaps TO weir_app;

CREATE TABLE metering_state (
    only_row boolean NOT NULL DEFAULT true,
    sealed_until timestamp with time zone NOT NULL,
    looked_at timestamp with time zone NOT NULL,
    waits_from timestamp with time zone NOT NULL,
    pushes_until timestamp with time zone NOT NULL,
    pushes_tenant uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000'::uuid,
    pushes_rule text COLLATE "C" NOT NULL DEFAULT ''::text,
    PRIMARY KEY (only_row),
    CHECK (only_row)
);
GRANT SELECT ON metering_state TO weir_app;
GRANT SELECT, UPDATE ON metering_state TO weir_system;

CREATE TABLE metering_writers (
    writer uuid NOT NULL,
    sequence bigint NOT NULL,
    complete_until timestamp with time zone NOT NULL,
    written_at timestamp with time zone NOT NULL,
    ended boolean NOT NULL,
    missing boolean NOT NULL DEFAULT false,
    PRIMARY KEY (writer)
);
GRANT DELETE, INSERT, SELECT, UPDATE ON metering_writers TO weir_system;

CREATE TABLE notification_deliveries (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    notification_id uuid NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    due_at timestamp with time zone,
    began_at timestamp with time zone NOT NULL,
    attempted_at timestamp with time zone,
    settled_at timestamp with time zone,
    status integer,
    why text NOT NULL DEFAULT ''::text,
    answer text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES notification_endpoints(tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, notification_id) REFERENCES notifications(tenant_id, id) ON DELETE CASCADE,
    CHECK (((state = 'pending'::text) = (due_at IS NOT NULL))),
    CHECK (((state = 'pending'::text) = (settled_at IS NULL))),
    CHECK ((char_length(why) <= 500)),
    CHECK ((octet_length(answer) <= 1024)),
    CHECK ((state = ANY (ARRAY['pending'::text, 'delivered'::text, 'parked'::text])))
);
CREATE INDEX notification_deliveries_due ON notification_deliveries USING btree (tenant_id, endpoint_id, due_at) WHERE (due_at IS NOT NULL);
CREATE INDEX notification_deliveries_endpoint ON notification_deliveries USING btree (tenant_id, endpoint_id, id);
CREATE INDEX notification_deliveries_notification ON notification_deliveries USING btree (tenant_id, notification_id);
ALTER TABLE notification_deliveries ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON notification_deliveries FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY send ON notification_deliveries FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON notification_deliveries TO weir_system;
GRANT INSERT, SELECT, UPDATE ON notification_deliveries TO weir_app;

CREATE TABLE notification_endpoints (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    url text NOT NULL,
    description text NOT NULL DEFAULT ''::text,
    types text[] NOT NULL,
    enabled boolean NOT NULL,
    disabled_why text NOT NULL DEFAULT ''::text,
    secrets bytea NOT NULL,
    secret_hint text NOT NULL,
    previous_until timestamp with time zone,
    created_at timestamp with time zone NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    version bigint NOT NULL,
    dropped bigint NOT NULL DEFAULT 0,
    dropped_at timestamp with time zone,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((octet_length(url) >= 1) AND (octet_length(url) <= 2048))),
    CHECK ((cardinality(types) <= 100)),
    CHECK ((char_length(description) <= 200)),
    CHECK ((char_length(disabled_why) <= 500))
);
ALTER TABLE notification_endpoints ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON notification_endpoints FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY send ON notification_endpoints FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON notification_endpoints TO weir_app;
GRANT SELECT (dropped, enabled, id, previous_until, secrets, tenant_id, types, url) ON notification_endpoints TO weir_system;
GRANT UPDATE (dropped, dropped_at) ON notification_endpoints TO weir_system;

CREATE TABLE notifications (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    type text NOT NULL,
    body text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((octet_length(type) >= 1) AND (octet_length(type) <= 100))),
    CHECK ((octet_length(body) <= 65536))
);
CREATE INDEX notifications_created ON notifications USING btree (created_at);
CREATE INDEX notifications_recent ON notifications USING btree (tenant_id, created_at);
ALTER TABLE notifications ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON notifications FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY send ON notifications FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT ON notifications TO weir_system;
GRANT INSERT, SELECT ON notifications TO weir_app;

CREATE TABLE overrides (
    tenant_id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    rule_id uuid NOT NULL,
    limit_units bigint,
    burst_units bigint,
    unlimited boolean NOT NULL DEFAULT false,
    reason text NOT NULL DEFAULT ''::text,
    created_by text NOT NULL DEFAULT ''::text,
    starts_at timestamp with time zone,
    expires_at timestamp with time zone,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, subject, rule_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules(tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, subject) REFERENCES subjects(tenant_id, subject) ON DELETE CASCADE,
    CHECK (((burst_units >= 1) AND (burst_units <= 1000000000))),
    CHECK (((burst_units IS NULL) OR (NOT unlimited))),
    CHECK (((limit_units >= 1) AND (limit_units <= '1000000000000000'::bigint))),
    CHECK (((starts_at < '10000-01-01 00:00:00+00'::timestamp with time zone) AND (expires_at < '10000-01-01 00:00:00+00'::timestamp with time zone))),
    CHECK ((char_length(reason) <= 500)),
    CHECK ((starts_at < expires_at)),
    CHECK ((unlimited = (limit_units IS NULL)))
);
CREATE INDEX overrides_end ON overrides USING btree (tenant_id, expires_at, subject, rule_id) WHERE (expires_at IS NOT NULL);
CREATE INDEX overrides_rule ON overrides USING btree (tenant_id, rule_id);
ALTER TABLE overrides ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON overrides FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON overrides FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON overrides TO weir_app;
GRANT SELECT (burst_units, expires_at, limit_units, rule_id, starts_at, subject, tenant_id, unlimited) ON overrides TO weir_system;

CREATE TABLE people (
    id uuid NOT NULL,
    email text NOT NULL,
    password_hash text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    alone_since timestamp with time zone,
    last_tenant uuid,
    PRIMARY KEY (id),
    UNIQUE (email),
    CHECK (((email = lower(email)) AND ((octet_length(email) >= 3) AND (octet_length(email) <= 254))))
);
CREATE INDEX people_alone ON people USING btree (alone_since) WHERE (alone_since IS NOT NULL);
ALTER TABLE people ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_people ON people FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
CREATE POLICY own_members ON people FOR SELECT TO weir_app
    USING ((EXISTS ( SELECT
   FROM members m
  WHERE (m.person_id = people.id))));
GRANT DELETE, INSERT, SELECT ON people TO weir_system;
GRANT SELECT (email, id) ON people TO weir_app;
GRANT UPDATE (alone_since, email, last_tenant, password_hash, updated_at) ON people TO weir_system;

CREATE TABLE person_addresses (
    person_id uuid NOT NULL,
    address text NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    PRIMARY KEY (person_id, address),
    FOREIGN KEY (person_id) REFERENCES people(id) ON DELETE CASCADE,
    CHECK (((octet_length(address) >= 1) AND (octet_length(address) <= 64)))
);
CREATE INDEX person_addresses_age ON person_addresses USING btree (seen_at);
ALTER TABLE person_addresses ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_addresses ON person_addresses FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT ON person_addresses TO weir_system;
GRANT UPDATE (seen_at) ON person_addresses TO weir_system;

CREATE TABLE plan_limits (
    tenant_id uuid NOT NULL,
    plan_id uuid NOT NULL,
    rule_id uuid NOT NULL,
    limit_units bigint,
    burst_units bigint,
    unlimited boolean NOT NULL DEFAULT false,
    version bigint NOT NULL,
    warn_at double precision,
    overage text,
    metering text,
    PRIMARY KEY (tenant_id, plan_id, rule_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans(tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules(tenant_id, id) ON DELETE CASCADE,
    CHECK (((burst_units >= 1) AND (burst_units <= 1000000000))),
    CHECK (((burst_units IS NULL) OR (NOT unlimited))),
    CHECK (((limit_units >= 1) AND (limit_units <= '1000000000000000'::bigint))),
    CHECK (((overage IS NULL) OR (NOT unlimited))),
    CHECK (((warn_at >= (0)::double precision) AND (warn_at <= (1)::double precision))),
    CHECK (((warn_at IS NULL) OR (NOT unlimited))),
    CHECK ((metering = ANY (ARRAY['none'::text, 'units'::text, 'overage'::text]))),
    CHECK ((overage = ANY (ARRAY['deny'::text, 'allow'::text]))),
    CHECK ((unlimited = (limit_units IS NULL)))
);
CREATE INDEX plan_limits_rule ON plan_limits USING btree (tenant_id, rule_id);
ALTER TABLE plan_limits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_limits FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON plan_limits FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON plan_limits TO weir_app;
GRANT SELECT (burst_units, limit_units, metering, overage, plan_id, rule_id, tenant_id, unlimited, warn_at) ON plan_limits TO weir_system;

CREATE TABLE plan_migrations (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    plan_id uuid NOT NULL,
    from_version integer,
    to_plan_id uuid NOT NULL,
    starts_at timestamp with time zone NOT NULL,
    at_cycle_end boolean NOT NULL,
    state text NOT NULL,
    subjects bigint NOT NULL,
    moved bigint NOT NULL DEFAULT 0,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    ended_at timestamp with time zone,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans(tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, to_plan_id) REFERENCES plans(tenant_id, id) ON DELETE CASCADE,
    CHECK (((ended_at IS NULL) = (state = ANY (ARRAY['scheduled'::text, 'running'::text, 'waiting'::text, 'canceling'::text])))),
    CHECK ((from_version >= 1)),
    CHECK ((moved >= 0)),
    CHECK ((state = ANY (ARRAY['scheduled'::text, 'running'::text, 'waiting'::text, 'done'::text, 'canceling'::text, 'canceled'::text]))),
    CHECK ((subjects >= 0))
);
CREATE INDEX plan_migrations_open ON plan_migrations USING btree (starts_at) WHERE (ended_at IS NULL);
CREATE INDEX plan_migrations_plan ON plan_migrations USING btree (tenant_id, plan_id, id);
CREATE INDEX plan_migrations_to_plan ON plan_migrations USING btree (tenant_id, to_plan_id);
CREATE INDEX plan_migrations_turn ON plan_migrations USING btree (tenant_id, starts_at, id) WHERE (ended_at IS NULL);
ALTER TABLE plan_migrations ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_migrations FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON plan_migrations FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON plan_migrations TO weir_app;
GRANT SELECT ON plan_migrations TO weir_system;

CREATE TABLE plan_version_limits (
    tenant_id uuid NOT NULL,
    plan_id uuid NOT NULL,
    number integer NOT NULL,
    rule_id uuid NOT NULL,
    limit_units bigint,
    burst_units bigint,
    unlimited boolean NOT NULL DEFAULT false,
    warn_at double precision,
    overage text,
    metering text,
    PRIMARY KEY (tenant_id, plan_id, number, rule_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, plan_id, number) REFERENCES plan_versions(tenant_id, plan_id, number) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules(tenant_id, id) ON DELETE CASCADE,
    CHECK (((burst_units >= 1) AND (burst_units <= 1000000000))),
    CHECK (((burst_units IS NULL) OR (NOT unlimited))),
    CHECK (((limit_units >= 1) AND (limit_units <= '1000000000000000'::bigint))),
    CHECK (((overage IS NULL) OR (NOT unlimited))),
    CHECK (((warn_at >= (0)::double precision) AND (warn_at <= (1)::double precision))),
    CHECK (((warn_at IS NULL) OR (NOT unlimited))),
    CHECK ((metering = ANY (ARRAY['none'::text, 'units'::text, 'overage'::text]))),
    CHECK ((overage = ANY (ARRAY['deny'::text, 'allow'::text]))),
    CHECK ((unlimited = (limit_units IS NULL)))
);
CREATE INDEX plan_version_limits_rule ON plan_version_limits USING btree (tenant_id, rule_id);
ALTER TABLE plan_version_limits ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_version_limits FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON plan_version_limits FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON plan_version_limits TO weir_app;
GRANT SELECT ON plan_version_limits TO weir_system;

CREATE TABLE plan_versions (
    tenant_id uuid NOT NULL,
    plan_id uuid NOT NULL,
    number integer NOT NULL,
    published_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, number),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans(tenant_id, id) ON DELETE CASCADE,
    CHECK ((number >= 1))
);
ALTER TABLE plan_versions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_versions FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON plan_versions FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON plan_versions TO weir_app;
GRANT SELECT ON plan_versions TO weir_system;

CREATE TABLE plans (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL DEFAULT ''::text,
    description text NOT NULL DEFAULT ''::text,
    is_default boolean NOT NULL DEFAULT false,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    on_change text NOT NULL DEFAULT 'carry'::text,
    newest_version integer NOT NULL DEFAULT 1,
    published_at timestamp with time zone,
    fail text NOT NULL DEFAULT 'closed'::text,
    bounds jsonb NOT NULL DEFAULT '{}'::jsonb,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, slug),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((char_length(description) <= 2000)),
    CHECK ((char_length(name) <= 200)),
    CHECK ((fail = ANY (ARRAY['closed'::text, 'open'::text]))),
    CHECK ((jsonb_typeof(bounds) = 'object'::text)),
    CHECK ((newest_version >= 1)),
    CHECK ((on_change = ANY (ARRAY['carry'::text, 'reset'::text, 'scale'::text]))),
    CHECK ((slug ~ '^[a-z0-9-]{1,63}$'::text))
);
CREATE UNIQUE INDEX plans_one_default ON plans USING btree (tenant_id) WHERE is_default;
ALTER TABLE plans ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plans FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON plans FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON plans TO weir_app;
GRANT SELECT (bounds, fail, id, is_default, newest_version, on_change, slug, tenant_id, version) ON plans TO weir_system;

CREATE TABLE portal_links (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    token_hash bytea NOT NULL,
    single_use boolean NOT NULL,
    created_by text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    used_at timestamp with time zone,
    pages_until timestamp with time zone,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((octet_length(subject) >= 1) AND (octet_length(subject) <= 256))),
    CHECK ((octet_length(token_hash) = 32))
);
CREATE INDEX portal_links_expiry ON portal_links USING btree (expires_at);
CREATE INDEX portal_links_subject ON portal_links USING btree (tenant_id, subject, id);
CREATE INDEX portal_links_token ON portal_links USING btree (token_hash);
ALTER TABLE portal_links ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY find ON portal_links FOR ALL TO weir_system
    USING (true);
CREATE POLICY own_tenant ON portal_links FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE ON portal_links TO weir_system;
GRANT DELETE, INSERT, SELECT ON portal_links TO weir_app;
GRANT SELECT (expires_at, id, tenant_id, token_hash) ON portal_links TO weir_system;
GRANT UPDATE (used_at) ON portal_links TO weir_app;

CREATE TABLE portal_sessions (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    link_id uuid NOT NULL,
    token_hash bytea NOT NULL,
    created_at timestamp with time zone NOT NULL,
    expires_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id, link_id) REFERENCES portal_links(tenant_id, id) ON DELETE CASCADE,
    CHECK ((octet_length(token_hash) = 32))
);
CREATE INDEX portal_sessions_link ON portal_sessions USING btree (tenant_id, link_id);
CREATE INDEX portal_sessions_token ON portal_sessions USING btree (token_hash);
ALTER TABLE portal_sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY find ON portal_sessions FOR ALL TO weir_system
    USING (true);
CREATE POLICY own_tenant ON portal_sessions FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE ON portal_sessions TO weir_system;
GRANT DELETE, INSERT, SELECT ON portal_sessions TO weir_app;
GRANT SELECT (expires_at, id, tenant_id, token_hash) ON portal_sessions TO weir_system;

CREATE TABLE portals (
    tenant_id uuid NOT NULL,
    brand text NOT NULL,
    accent text NOT NULL,
    logo bytea,
    frame_origins text[] NOT NULL,
    offered_plans text[] NOT NULL,
    requests boolean NOT NULL,
    auto_percent integer NOT NULL,
    auto_for_text text NOT NULL,
    auto_for_ms bigint NOT NULL,
    auto_every_text text NOT NULL,
    auto_every_ms bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((auto_percent >= 0) AND (auto_percent <= 1000))),
    CHECK ((accent ~ '^(#[0-9a-f]{6})?$'::text)),
    CHECK ((cardinality(frame_origins) <= 20)),
    CHECK ((cardinality(offered_plans) <= 50)),
    CHECK ((char_length(brand) <= 80)),
    CHECK ((octet_length(logo) <= 131072))
);
ALTER TABLE portals ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON portals FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT INSERT, SELECT, UPDATE ON portals TO weir_app;

CREATE TABLE quota_notices (
    tenant_id uuid NOT NULL,
    rule text NOT NULL,
    window_end timestamp with time zone NOT NULL,
    percent integer NOT NULL,
    used bigint NOT NULL,
    quota bigint NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant_id, rule, window_end, percent),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((percent = ANY (ARRAY[80, 95, 100])))
);
CREATE INDEX quota_notices_end ON quota_notices USING btree (window_end);
ALTER TABLE quota_notices ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY keep ON quota_notices FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
CREATE POLICY own_tenant ON quota_notices FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, INSERT, SELECT ON quota_notices TO weir_system;
GRANT SELECT ON quota_notices TO weir_app;

CREATE TABLE restores (
    only_row boolean NOT NULL DEFAULT true,
    restored_at timestamp with time zone,
    PRIMARY KEY (only_row),
    CHECK (only_row)
);
GRANT SELECT, UPDATE ON restores TO weir_system;

CREATE TABLE routes (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL DEFAULT ''::text,
    description text NOT NULL DEFAULT ''::text,
    subject text[] NOT NULL,
    hash text NOT NULL,
    no_subject text NOT NULL,
    resources jsonb NOT NULL,
    default_resource text NOT NULL,
    cost bigint NOT NULL,
    attributes jsonb NOT NULL,
    denied_status integer NOT NULL,
    fail text NOT NULL,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, slug),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK ((((cardinality(subject) >= 1) AND (cardinality(subject) <= 8)) AND (array_position(subject, NULL::text) IS NULL) AND (octet_length(array_to_string(subject, ''::text)) <= 2048))),
    CHECK ((((octet_length(default_resource) >= 1) AND (octet_length(default_resource) <= 256)) AND (POSITION(('*'::text) IN (default_resource)) = 0))),
    CHECK (((cost >= 0) AND (cost <= '1000000000000000'::bigint))),
    CHECK (((jsonb_typeof(attributes) = 'object'::text) AND (octet_length((attributes)::text) <= 8192))),
    CHECK (((jsonb_typeof(resources) = 'array'::text) AND (jsonb_array_length(resources) <= 100) AND (octet_length((resources)::text) <= 131072))),
    CHECK ((char_length(description) <= 2000)),
    CHECK ((char_length(name) <= 200)),
    CHECK ((denied_status = ANY (ARRAY[429, 403]))),
    CHECK ((fail = ANY (ARRAY['closed'::text, 'open'::text]))),
    CHECK ((hash = ANY (ARRAY['secrets'::text, 'all'::text, 'none'::text]))),
    CHECK ((no_subject = ANY (ARRAY['deny'::text, 'allow'::text, 'ip'::text]))),
    CHECK ((slug ~ '^[a-z0-9-]{1,63}$'::text))
);
ALTER TABLE routes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON routes FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON routes FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON routes TO weir_app;
GRANT SELECT ON routes TO weir_system;

CREATE TABLE rules (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL DEFAULT ''::text,
    description text NOT NULL DEFAULT ''::text,
    resource text NOT NULL,
    algorithm text NOT NULL,
    limit_units bigint NOT NULL,
    window_text text NOT NULL,
    window_ms bigint,
    burst_units bigint,
    precision_text text NOT NULL DEFAULT ''::text,
    precision_ms bigint,
    by_values text[] NOT NULL,
    mode text NOT NULL,
    on_unavailable text NOT NULL,
    penalty_text text NOT NULL DEFAULT ''::text,
    penalty_ms bigint,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    consistency text NOT NULL DEFAULT 'strict'::text,
    zone text,
    anchor text,
    warn_at double precision,
    overage text,
    metering text NOT NULL DEFAULT 'none'::text,
    meter_event text NOT NULL DEFAULT ''::text,
    lease_text text NOT NULL DEFAULT ''::text,
    lease_ms bigint,
    on_missing_attribute text,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, slug),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (
CASE
    WHEN (algorithm = 'sliding_window_buckets'::text) THEN ((precision_ms IS NOT NULL) AND ((window_ms % precision_ms) = 0) AND ((window_ms / precision_ms) <= 120))
    ELSE (precision_ms IS NULL)
END),
    CHECK (
CASE
    WHEN (window_ms IS NULL) THEN ((algorithm = 'fixed_window'::text) AND (window_text = ANY (ARRAY['day'::text, 'week'::text, 'month'::text, 'year'::text])))
    ELSE (window_text <> ALL (ARRAY[''::text, 'day'::text, 'week'::text, 'month'::text, 'year'::text]))
END),
    CHECK ((((octet_length(resource) >= 1) AND (octet_length(resource) <= 256)) AND ((POSITION(('*'::text) IN (resource)) = 0) OR (POSITION(('*'::text) IN (resource)) = char_length(resource))))),
    CHECK (((anchor = 'calendar'::text) OR ('subject'::text = ANY (by_values)))),
    CHECK (((burst_units >= 1) AND (burst_units <= 1000000000))),
    CHECK (((burst_units IS NULL) OR (((burst_units)::numeric * (window_ms)::numeric) <= ((limit_units)::numeric * ('31622400000'::bigint)::numeric)))),
    CHECK (((burst_units IS NULL) OR (algorithm = ANY (ARRAY['token_bucket'::text, 'leaky_bucket'::text, 'leaky_bucket_queue'::text])))),
    CHECK (((cardinality(by_values) <= 16) AND (array_position(by_values, NULL::text) IS NULL) AND (array_position(by_values, ''::text) IS NULL) AND (array_to_string(by_values, ','::text) ~ '^((subject|resource|attributes\.[A-Za-z0-9_.-]{1,64})(,(subject|resource|attributes\.[A-Za-z0-9_.-]{1,64}))*)?$'::text))),
    CHECK (((consistency = 'strict'::text) OR ((algorithm <> ALL (ARRAY['sliding_window_log'::text, 'leaky_bucket_queue'::text])) AND (penalty_ms IS NULL)))),
    CHECK (((lease_ms >= 50) AND (lease_ms <= 10000))),
    CHECK (((lease_ms IS NULL) = (lease_text = ''::text))),
    CHECK (((limit_units >= 1) AND (limit_units <=
CASE
    WHEN (algorithm = ANY (ARRAY['fixed_window'::text, 'fixed_window_first_hit'::text])) THEN '1000000000000000'::bigint
    WHEN (algorithm = 'sliding_window_log'::text) THEN (10000)::bigint
    ELSE (1000000000)::bigint
END))),
    CHECK (((metering <> 'none'::text) OR (meter_event = ''::text))),
    CHECK (((octet_length(zone) >= 1) AND (octet_length(zone) <= 64))),
    CHECK (((penalty_ms >= 1) AND (penalty_ms <= '2592000000'::bigint))),
    CHECK (((penalty_ms IS NULL) = (penalty_text = ''::text))),
    CHECK (((precision_ms IS NULL) = (precision_text = ''::text))),
    CHECK (((warn_at >= (0)::double precision) AND (warn_at <= (1)::double precision))),
    CHECK (((window_ms >= 1000) AND (window_ms <= '31622400000'::bigint))),
    CHECK (((window_ms IS NULL) OR ((zone IS NULL) AND (anchor IS NULL)))),
    CHECK ((algorithm = ANY (ARRAY['sliding_window_counter'::text, 'sliding_window_log'::text, 'sliding_window_buckets'::text, 'fixed_window'::text, 'fixed_window_first_hit'::text, 'token_bucket'::text, 'leaky_bucket'::text, 'leaky_bucket_queue'::text]))),
    CHECK ((anchor = ANY (ARRAY['calendar'::text, 'subject'::text]))),
    CHECK ((char_length(description) <= 2000)),
    CHECK ((char_length(meter_event) <= 100)),
    CHECK ((char_length(name) <= 200)),
    CHECK ((consistency = ANY (ARRAY['strict'::text, 'leased'::text]))),
    CHECK ((metering = ANY (ARRAY['none'::text, 'units'::text, 'overage'::text]))),
    CHECK ((mode = ANY (ARRAY['enforce'::text, 'shadow'::text, 'off'::text]))),
    CHECK ((on_missing_attribute = ANY (ARRAY['skip'::text, 'deny'::text]))),
    CHECK ((on_unavailable = ANY (ARRAY['allow'::text, 'deny'::text, 'local'::text]))),
    CHECK ((overage = 'allow'::text)),
    CHECK ((precision_ms >= 1)),
    CHECK ((slug ~ '^[a-z0-9-]{1,63}$'::text))
);
CREATE TRIGGER keep_own_limit AFTER UPDATE OF limit_units, burst_units, overage ON rules FOR EACH ROW WHEN ((((old.limit_units IS DISTINCT FROM new.limit_units) OR (old.burst_units IS DISTINCT FROM new.burst_units)) OR (old.overage IS DISTINCT FROM new.overage))) EXECUTE FUNCTION keep_own_limit();
CREATE TRIGGER note_changed_meter AFTER UPDATE OF slug, metering, meter_event ON rules FOR EACH ROW WHEN (((old.meter_event <> ''::text) AND (((old.slug IS DISTINCT FROM new.slug) OR (old.metering IS DISTINCT FROM new.metering)) OR (old.meter_event IS DISTINCT FROM new.meter_event)))) EXECUTE FUNCTION note_ended_meter();
CREATE TRIGGER note_created_meter AFTER INSERT ON rules FOR EACH ROW WHEN ((new.meter_event <> ''::text)) EXECUTE FUNCTION note_first_meter();
CREATE TRIGGER note_deleted_meter AFTER DELETE ON rules FOR EACH ROW WHEN ((old.meter_event <> ''::text)) EXECUTE FUNCTION note_ended_meter();
CREATE TRIGGER note_first_meter AFTER UPDATE OF slug, meter_event ON rules FOR EACH ROW WHEN (((new.meter_event <> ''::text) AND ((old.meter_event = ''::text) OR (old.slug <> new.slug)))) EXECUTE FUNCTION note_first_meter();
ALTER TABLE rules ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON rules FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON rules FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON rules TO weir_app;
GRANT SELECT ON rules TO weir_system;

CREATE TABLE security_events (
    tenant_id uuid NOT NULL,
    id uuid NOT NULL,
    at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    actor_kind text NOT NULL,
    actor_id uuid,
    actor_name text NOT NULL,
    address text NOT NULL,
    user_agent text NOT NULL,
    request_id text NOT NULL,
    target text NOT NULL,
    details jsonb NOT NULL DEFAULT '{}'::jsonb,
    PRIMARY KEY (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((char_length(kind) >= 1) AND (char_length(kind) <= 50)))
);
CREATE INDEX security_events_actor ON security_events USING btree (tenant_id, actor_name, id);
CREATE INDEX security_events_at ON security_events USING btree (tenant_id, at);
CREATE INDEX security_events_kind ON security_events USING btree (tenant_id, kind, id);
ALTER TABLE security_events ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON security_events FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON security_events FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT ON security_events TO weir_system;
GRANT INSERT, SELECT ON security_events TO weir_app;
GRANT SELECT (actor_id, actor_name, at, id, tenant_id) ON security_events TO weir_system;

CREATE TABLE security_settings (
    tenant_id uuid NOT NULL,
    session_idle_text text NOT NULL,
    session_idle_ms bigint NOT NULL,
    session_life_text text NOT NULL,
    session_life_ms bigint NOT NULL,
    max_sessions integer NOT NULL,
    confirm_after_text text NOT NULL,
    confirm_after_ms bigint NOT NULL,
    event_retention_text text NOT NULL,
    event_retention_ms bigint NOT NULL,
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    CHECK (((confirm_after_ms >= 60000) AND (confirm_after_ms <= 43200000))),
    CHECK (((event_retention_ms >= '2592000000'::bigint) AND (event_retention_ms <= '315360000000'::bigint))),
    CHECK (((max_sessions >= 1) AND (max_sessions <= 100))),
    CHECK (((session_idle_ms >= 300000) AND (session_idle_ms <= 43200000))),
    CHECK (((session_life_ms >= 3600000) AND (session_life_ms <= 604800000)))
);
ALTER TABLE security_settings ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON security_settings FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON security_settings FOR SELECT TO weir_system
    USING (true);
GRANT INSERT, SELECT, UPDATE ON security_settings TO weir_app;
GRANT SELECT ON security_settings TO weir_system;

CREATE TABLE sessions (
    token_hash bytea NOT NULL,
    id uuid NOT NULL,
    person_id uuid NOT NULL,
    chosen_tenant uuid,
    address text NOT NULL DEFAULT ''::text,
    user_agent text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL,
    seen_at timestamp with time zone NOT NULL,
    proved_at timestamp with time zone,
    longest_idle_ms bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (token_hash),
    UNIQUE (id),
    FOREIGN KEY (chosen_tenant) REFERENCES tenants(id) ON DELETE SET NULL,
    FOREIGN KEY (person_id) REFERENCES people(id) ON DELETE CASCADE,
    CHECK ((octet_length(address) <= 64)),
    CHECK ((octet_length(token_hash) = 32)),
    CHECK ((octet_length(user_agent) <= 512))
);
CREATE INDEX sessions_age ON sessions USING btree (created_at);
CREATE INDEX sessions_person ON sessions USING btree (person_id);
CREATE INDEX sessions_tenant ON sessions USING btree (chosen_tenant);
ALTER TABLE sessions ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_sessions ON sessions FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT ON sessions TO weir_system;
GRANT UPDATE (chosen_tenant, longest_idle_ms, proved_at, seen_at) ON sessions TO weir_system;

CREATE TABLE subject_labels (
    tenant_id uuid NOT NULL,
    key text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    plan_id uuid NOT NULL,
    state text NOT NULL,
    PRIMARY KEY (tenant_id, key, subject, plan_id, state),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE
);
CREATE INDEX subject_labels_key ON subject_labels USING btree (tenant_id, key, id, plan_id, state);
CREATE INDEX subject_labels_value ON subject_labels USING btree (tenant_id, key, value, id, plan_id, state);
CREATE INDEX subject_labels_value_subject ON subject_labels USING btree (tenant_id, key, value, subject, plan_id, state);
ALTER TABLE subject_labels ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON subject_labels FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
GRANT DELETE, INSERT, SELECT ON subject_labels TO weir_app;

CREATE TABLE subject_tombstones (
    tenant_id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    deleted_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, subject),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE
);
CREATE INDEX subject_tombstones_age ON subject_tombstones USING btree (deleted_at);
CREATE INDEX subject_tombstones_version ON subject_tombstones USING btree (tenant_id, version);
ALTER TABLE subject_tombstones ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON subject_tombstones FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY purge_old ON subject_tombstones FOR DELETE TO weir_system
    USING ((deleted_at < (now() - '24:00:00'::interval)));
CREATE POLICY read_all ON subject_tombstones FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON subject_tombstones TO weir_app;
GRANT DELETE, SELECT ON subject_tombstones TO weir_system;

CREATE TABLE subjects (
    tenant_id uuid NOT NULL,
    subject text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    plan_id uuid,
    state text NOT NULL DEFAULT 'active'::text,
    labels jsonb NOT NULL DEFAULT '{}'::jsonb,
    billing_ref text NOT NULL DEFAULT ''::text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    cycle_anchor timestamp with time zone,
    multiplier integer NOT NULL DEFAULT 1,
    next_plan_id uuid,
    next_plan_at timestamp with time zone,
    plan_version integer NOT NULL DEFAULT 1,
    migration_id uuid,
    has_credits boolean NOT NULL DEFAULT false,
    next_plan_at_cycle_end boolean,
    PRIMARY KEY (tenant_id, subject),
    UNIQUE (tenant_id, id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, next_plan_id) REFERENCES plans(tenant_id, id),
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans(tenant_id, id),
    CHECK (((cycle_anchor >= '0001-01-01 00:00:00+00'::timestamp with time zone) AND (cycle_anchor < '10000-01-01 00:00:00+00'::timestamp with time zone))),
    CHECK (((multiplier >= 1) AND (multiplier <= 1000000))),
    CHECK (((next_plan_id IS NULL) = (next_plan_at IS NULL))),
    CHECK (((octet_length(subject) >= 1) AND (octet_length(subject) <= 256))),
    CHECK ((jsonb_typeof(labels) = 'object'::text)),
    CHECK ((octet_length(billing_ref) <= 256)),
    CHECK ((plan_version >= 1)),
    CHECK ((state = ANY (ARRAY['active'::text, 'blocked'::text, 'exempt'::text]))),
    CHECK (next_plan_at_cycle_end)
);
CREATE INDEX subjects_billing_ref ON subjects USING btree (tenant_id, billing_ref) WHERE (billing_ref <> ''::text);
CREATE INDEX subjects_migration ON subjects USING btree (tenant_id, migration_id) WHERE (migration_id IS NOT NULL);
CREATE INDEX subjects_next_plan ON subjects USING btree (next_plan_at) WHERE (next_plan_at IS NOT NULL);
CREATE INDEX subjects_next_plan_of ON subjects USING btree (tenant_id, next_plan_id) WHERE (next_plan_id IS NOT NULL);
CREATE INDEX subjects_plan ON subjects USING btree (tenant_id, plan_id, id, state);
CREATE INDEX subjects_plan_subject ON subjects USING btree (tenant_id, plan_id, subject, state);
CREATE INDEX subjects_plan_version ON subjects USING btree (tenant_id, plan_id, plan_version);
CREATE INDEX subjects_state ON subjects USING btree (tenant_id, state, id, plan_id) WHERE (state <> 'active'::text);
CREATE INDEX subjects_state_subject ON subjects USING btree (tenant_id, state, subject, plan_id) WHERE (state <> 'active'::text);
CREATE INDEX subjects_turn ON subjects USING btree (tenant_id, next_plan_at, subject) WHERE (next_plan_at IS NOT NULL);
CREATE INDEX subjects_version ON subjects USING btree (tenant_id, version);
CREATE TRIGGER add_labels AFTER INSERT ON subjects REFERENCING NEW TABLE AS new_subjects FOR EACH STATEMENT EXECUTE FUNCTION add_subject_labels();
CREATE TRIGGER move_labels AFTER UPDATE ON subjects REFERENCING OLD TABLE AS old_subjects NEW TABLE AS new_subjects FOR EACH STATEMENT EXECUTE FUNCTION move_subject_labels();
CREATE TRIGGER note_changed_plan AFTER UPDATE OF plan_id, plan_version ON subjects FOR EACH ROW WHEN (((old.plan_id IS DISTINCT FROM new.plan_id) OR (old.plan_version <> new.plan_version))) EXECUTE FUNCTION note_changed_plan();
CREATE TRIGGER note_first_plan AFTER INSERT ON subjects FOR EACH ROW WHEN ((new.plan_id IS NOT NULL)) EXECUTE FUNCTION note_changed_plan();
CREATE TRIGGER note_last_plan AFTER DELETE ON subjects FOR EACH ROW WHEN ((old.plan_id IS NOT NULL)) EXECUTE FUNCTION note_changed_plan();
CREATE TRIGGER remove_labels AFTER DELETE ON subjects REFERENCING OLD TABLE AS old_subjects FOR EACH STATEMENT EXECUTE FUNCTION remove_subject_labels();
ALTER TABLE subjects ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON subjects FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY read_all ON subjects FOR SELECT TO weir_system
    USING (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON subjects TO weir_app;
GRANT SELECT (cycle_anchor, has_credits, migration_id, multiplier, next_plan_at, next_plan_id, plan_id, plan_version, state, subject, tenant_id, version) ON subjects TO weir_system;

CREATE TABLE tenants (
    id uuid NOT NULL,
    slug text NOT NULL,
    name text NOT NULL DEFAULT ''::text,
    state text NOT NULL DEFAULT 'active'::text,
    created_at timestamp with time zone NOT NULL DEFAULT now(),
    updated_at timestamp with time zone NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    policy_version bigint NOT NULL,
    subjects_version bigint NOT NULL,
    keys_version bigint NOT NULL,
    subjects_history_from bigint NOT NULL DEFAULT 0,
    changed_version bigint NOT NULL GENERATED ALWAYS AS GREATEST(version, policy_version, subjects_version, keys_version) STORED,
    partitions integer NOT NULL DEFAULT 1,
    partitions_before integer NOT NULL DEFAULT 0,
    partitions_changed_at timestamp with time zone,
    deleted_at timestamp with time zone,
    PRIMARY KEY (id),
    UNIQUE (slug),
    CHECK (((partitions >= 1) AND (partitions <= 64))),
    CHECK (((partitions_before = 0) = (partitions_changed_at IS NULL))),
    CHECK (((partitions_before >= 0) AND (partitions_before <= 64))),
    CHECK ((char_length(name) <= 200)),
    CHECK ((slug ~ '^[a-z0-9-]{1,63}$'::text)),
    CHECK ((state = ANY (ARRAY['active'::text, 'suspended'::text])))
);
CREATE INDEX tenants_changed ON tenants USING btree (changed_version);
CREATE INDEX tenants_deleted ON tenants USING btree (deleted_at) WHERE (deleted_at IS NOT NULL);
ALTER TABLE tenants ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY all_tenants ON tenants FOR ALL TO weir_system
    USING (((deleted_at IS NULL) OR (current_setting('weir.deleted_tenants'::text, true) = 'on'::text)))
    WITH CHECK (true);
CREATE POLICY own_tenant ON tenants FOR ALL TO weir_app
    USING (((id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid) AND (deleted_at IS NULL)))
    WITH CHECK (((id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid) AND (deleted_at IS NULL)));
GRANT DELETE, INSERT, SELECT ON tenants TO weir_system;
GRANT SELECT ON tenants TO weir_app;
GRANT UPDATE (deleted_at, keys_version, name, partitions, partitions_before, partitions_changed_at, policy_version, slug, state, subjects_history_from, subjects_version, updated_at, version) ON tenants TO weir_system;
GRANT UPDATE (keys_version, name, policy_version, subjects_version, updated_at, version) ON tenants TO weir_app;

CREATE TABLE tier_notices (
    tenant_id uuid NOT NULL,
    tier text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    PRIMARY KEY (tenant_id),
    FOREIGN KEY (tenant_id) REFERENCES tenants(id) ON DELETE CASCADE
);
ALTER TABLE tier_notices ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON tier_notices FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY record ON tier_notices FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON tier_notices TO weir_system;
GRANT SELECT ON tier_notices TO weir_app;

CREATE TABLE usage_days (
    tenant_id uuid NOT NULL,
    start timestamp with time zone NOT NULL,
    rule text COLLATE "C" NOT NULL,
    plan text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    allowed bigint NOT NULL,
    denied bigint NOT NULL,
    shadow_denied bigint NOT NULL,
    degraded bigint NOT NULL,
    cost_allowed bigint NOT NULL,
    cost_denied bigint NOT NULL,
    PRIMARY KEY (tenant_id, start, rule, plan, resource),
    CHECK ((allowed >= 0)),
    CHECK ((cost_allowed >= 0)),
    CHECK ((cost_denied >= 0)),
    CHECK ((degraded >= 0)),
    CHECK ((denied >= 0)),
    CHECK ((shadow_denied >= 0))
);
CREATE INDEX usage_days_start ON usage_days USING btree (start);
ALTER TABLE usage_days ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_days FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON usage_days FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON usage_days TO weir_system;
GRANT SELECT ON usage_days TO weir_app;

CREATE TABLE usage_hours (
    tenant_id uuid NOT NULL,
    start timestamp with time zone NOT NULL,
    rule text COLLATE "C" NOT NULL,
    plan text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    allowed bigint NOT NULL,
    denied bigint NOT NULL,
    shadow_denied bigint NOT NULL,
    degraded bigint NOT NULL,
    cost_allowed bigint NOT NULL,
    cost_denied bigint NOT NULL,
    PRIMARY KEY (tenant_id, start, rule, plan, resource),
    CHECK ((allowed >= 0)),
    CHECK ((cost_allowed >= 0)),
    CHECK ((cost_denied >= 0)),
    CHECK ((degraded >= 0)),
    CHECK ((denied >= 0)),
    CHECK ((shadow_denied >= 0))
);
CREATE INDEX usage_hours_start ON usage_hours USING btree (start);
ALTER TABLE usage_hours ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_hours FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON usage_hours FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON usage_hours TO weir_system;
GRANT SELECT ON usage_hours TO weir_app;

CREATE TABLE usage_minutes (
    tenant_id uuid NOT NULL,
    slot smallint NOT NULL,
    start timestamp with time zone NOT NULL,
    rule text COLLATE "C" NOT NULL,
    plan text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    allowed bigint NOT NULL,
    denied bigint NOT NULL,
    shadow_denied bigint NOT NULL,
    degraded bigint NOT NULL,
    cost_allowed bigint NOT NULL,
    cost_denied bigint NOT NULL,
    PRIMARY KEY (tenant_id, start, rule, plan, resource, slot),
    CHECK ((allowed >= 0)),
    CHECK ((cost_allowed >= 0)),
    CHECK ((cost_denied >= 0)),
    CHECK ((degraded >= 0)),
    CHECK ((denied >= 0)),
    CHECK ((shadow_denied >= 0)),
    CHECK ((slot = ((floor((EXTRACT(epoch FROM start) / (86400)::numeric)))::bigint % (5)::bigint)))
) PARTITION BY LIST (slot);
ALTER TABLE usage_minutes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_minutes FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON usage_minutes FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT INSERT, SELECT, UPDATE ON usage_minutes TO weir_system;
GRANT SELECT ON usage_minutes TO weir_app;

CREATE TABLE usage_subjects (
    tenant_id uuid NOT NULL,
    grain text NOT NULL,
    start timestamp with time zone NOT NULL,
    top jsonb NOT NULL,
    PRIMARY KEY (tenant_id, grain, start),
    CHECK ((grain = ANY (ARRAY['minute'::text, 'hour'::text, 'day'::text])))
);
CREATE INDEX usage_subjects_start ON usage_subjects USING btree (grain, start);
ALTER TABLE usage_subjects ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON usage_subjects FOR ALL TO weir_app
    USING ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid))
    WITH CHECK ((tenant_id = (NULLIF(current_setting('weir.tenant_id'::text, true), ''::text))::uuid));
CREATE POLICY write_all ON usage_subjects FOR ALL TO weir_system
    USING (true)
    WITH CHECK (true);
GRANT DELETE, INSERT, SELECT, UPDATE ON usage_subjects TO weir_system;
GRANT SELECT ON usage_subjects TO weir_app;

CREATE TABLE usage_writers (
    writer uuid NOT NULL,
    batch uuid NOT NULL,
    complete_until timestamp with time zone NOT NULL,
    written_at timestamp with time zone NOT NULL,
    ended boolean NOT NULL,
    PRIMARY KEY (writer)
);
GRANT DELETE, INSERT, SELECT, UPDATE ON usage_writers TO weir_system;
GRANT SELECT (complete_until, ended, writer, written_at) ON usage_writers TO weir_app;
