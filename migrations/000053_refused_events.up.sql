-- When an endpoint last refused an event, and why: a code. Empty: never. Each instance writes it at
-- most once a second for an endpoint.
ALTER TABLE billing_endpoints
    ADD COLUMN refused_at timestamptz,
    ADD COLUMN refused_why text NOT NULL DEFAULT '';
