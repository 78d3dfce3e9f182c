-- What is limited, how, and how much under each plan. The ranges are those of
-- internal/check/rule.go, which says them to people; here they hold against every writer.

-- A duration is kept as it was written ("60s") and in milliseconds; a calendar window (day, week,
-- month) has no milliseconds.
CREATE TABLE rules (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    slug text NOT NULL CHECK (slug ~ '^[a-z0-9-]{1,63}$'),
    name text NOT NULL DEFAULT '' CHECK (char_length(name) <= 200),
    description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
    resource text NOT NULL
        CHECK (octet_length(resource) BETWEEN 1 AND 256 AND position('*' IN resource) IN (0, char_length(resource))),
    algorithm text NOT NULL CHECK (algorithm IN (
        'sliding_window_counter', 'sliding_window_log', 'sliding_window_buckets', 'fixed_window',
        'fixed_window_first_hit', 'token_bucket', 'leaky_bucket', 'leaky_bucket_queue')),
    limit_units bigint NOT NULL CHECK (limit_units BETWEEN 1 AND CASE
        WHEN algorithm IN ('fixed_window', 'fixed_window_first_hit') THEN 1000000000000000
        WHEN algorithm = 'sliding_window_log' THEN 10000
        ELSE 1000000000 END),
    window_text text NOT NULL,
    window_ms bigint CHECK (window_ms BETWEEN 1000 AND 31622400000),
    burst_units bigint CHECK (burst_units BETWEEN 1 AND 1000000000), -- null: the same as the limit
    precision_text text NOT NULL DEFAULT '',
    precision_ms bigint CHECK (precision_ms >= 1),
    by_values text[] NOT NULL CHECK (
        cardinality(by_values) <= 16 AND array_position(by_values, NULL) IS NULL AND array_position(by_values, '') IS NULL
        AND array_to_string(by_values, ',') ~
            '^((subject|resource|attributes\.[A-Za-z0-9_.-]{1,64})(,(subject|resource|attributes\.[A-Za-z0-9_.-]{1,64}))*)?$'),
    mode text NOT NULL CHECK (mode IN ('enforce', 'shadow', 'off')),
    on_unavailable text NOT NULL CHECK (on_unavailable IN ('allow', 'deny', 'local')),
    penalty_text text NOT NULL DEFAULT '',
    penalty_ms bigint CHECK (penalty_ms BETWEEN 1 AND 2592000000),
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, slug),
    CHECK (CASE WHEN window_ms IS NULL
        THEN algorithm = 'fixed_window' AND window_text IN ('day', 'week', 'month')
        ELSE window_text NOT IN ('', 'day', 'week', 'month') END),
    CHECK ((precision_ms IS NULL) = (precision_text = '')),
    CHECK ((penalty_ms IS NULL) = (penalty_text = '')),
    CHECK (CASE WHEN algorithm = 'sliding_window_buckets'
        THEN precision_ms IS NOT NULL AND window_ms % precision_ms = 0 AND window_ms / precision_ms <= 120
        ELSE precision_ms IS NULL END),
    CHECK (burst_units IS NULL OR algorithm IN ('token_bucket', 'leaky_bucket', 'leaky_bucket_queue')),
    -- A bucket is full again within 366 days. Numeric, for the product passes 2^63.
    CHECK (burst_units IS NULL OR burst_units::numeric * window_ms <= limit_units::numeric * 31622400000)
);

CREATE TABLE plans (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id uuid NOT NULL,
    slug text NOT NULL CHECK (slug ~ '^[a-z0-9-]{1,63}$'),
    name text NOT NULL DEFAULT '' CHECK (char_length(name) <= 200),
    description text NOT NULL DEFAULT '' CHECK (char_length(description) <= 2000),
    is_default boolean NOT NULL DEFAULT false,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, id),
    UNIQUE (tenant_id, slug)
);
CREATE UNIQUE INDEX plans_one_default ON plans (tenant_id) WHERE is_default;

-- The number that a plan gives a rule. What the rule's algorithm allows beyond these ranges is
-- checked where either of the two is written.
CREATE TABLE plan_limits (
    tenant_id uuid NOT NULL REFERENCES tenants ON DELETE CASCADE,
    plan_id uuid NOT NULL,
    rule_id uuid NOT NULL,
    limit_units bigint CHECK (limit_units BETWEEN 1 AND 1000000000000000),
    burst_units bigint CHECK (burst_units BETWEEN 1 AND 1000000000),
    unlimited boolean NOT NULL DEFAULT false,
    version bigint NOT NULL,
    PRIMARY KEY (tenant_id, plan_id, rule_id),
    FOREIGN KEY (tenant_id, plan_id) REFERENCES plans (tenant_id, id) ON DELETE CASCADE,
    FOREIGN KEY (tenant_id, rule_id) REFERENCES rules (tenant_id, id) ON DELETE CASCADE,
    CHECK (unlimited = (limit_units IS NULL)),
    CHECK (burst_units IS NULL OR NOT unlimited)
);
CREATE INDEX plan_limits_rule ON plan_limits (tenant_id, rule_id);

ALTER TABLE rules ENABLE ROW LEVEL SECURITY;
ALTER TABLE rules FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON rules TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON rules FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON rules TO weir_app;
GRANT SELECT ON rules TO weir_system;

ALTER TABLE plans ENABLE ROW LEVEL SECURITY;
ALTER TABLE plans FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plans TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON plans FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON plans TO weir_app;
GRANT SELECT (tenant_id, id, slug, is_default, version) ON plans TO weir_system;

ALTER TABLE plan_limits ENABLE ROW LEVEL SECURITY;
ALTER TABLE plan_limits FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON plan_limits TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
CREATE POLICY read_all ON plan_limits FOR SELECT TO weir_system USING (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON plan_limits TO weir_app;
GRANT SELECT (tenant_id, plan_id, rule_id, limit_units, burst_units, unlimited) ON plan_limits TO weir_system;
