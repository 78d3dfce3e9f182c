-- A price can stand for credits instead of a plan: each purchase of it grants them once.
ALTER TABLE billing_prices
    ALTER COLUMN plan_id DROP NOT NULL,
    ADD COLUMN rule_id uuid,
    ADD COLUMN units bigint CHECK (units BETWEEN 1 AND 1000000000000000),
    ADD COLUMN expires_days int CHECK (expires_days BETWEEN 1 AND 3650), -- after the purchase; null: the credits never expire
    ADD FOREIGN KEY (tenant_id, rule_id) REFERENCES rules (tenant_id, id),
    ADD CHECK ((plan_id IS NULL) <> (rule_id IS NULL)),
    ADD CHECK ((rule_id IS NULL) = (units IS NULL)),
    ADD CHECK (expires_days IS NULL OR rule_id IS NOT NULL);
CREATE INDEX billing_prices_rule ON billing_prices (tenant_id, rule_id);

-- Payments of purchases, and those that were refunded. Events name them in any order.
CREATE TABLE billing_payments (
    tenant_id uuid NOT NULL,
    endpoint_id uuid NOT NULL,
    payment text COLLATE "C" NOT NULL CHECK (octet_length(payment) BETWEEN 1 AND 255),
    purchase text COLLATE "C" NOT NULL DEFAULT '' CHECK (octet_length(purchase) <= 255), -- an invoice or a checkout; '': not known
    refunded boolean NOT NULL DEFAULT false, -- completely
    PRIMARY KEY (tenant_id, endpoint_id, payment),
    FOREIGN KEY (tenant_id, endpoint_id) REFERENCES billing_endpoints (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX billing_payments_purchase ON billing_payments (tenant_id, endpoint_id, purchase) WHERE purchase <> '';

ALTER TABLE billing_payments ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_payments FORCE ROW LEVEL SECURITY;
CREATE POLICY own_tenant ON billing_payments TO weir_app
    USING (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid)
    WITH CHECK (tenant_id = NULLIF(current_setting('weir.tenant_id', true), '')::uuid);
GRANT SELECT, INSERT, UPDATE, DELETE ON billing_payments TO weir_app;
