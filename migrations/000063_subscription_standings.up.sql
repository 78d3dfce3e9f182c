-- Where a subscription stands among those of its subject: the units of meters are sent for the
-- customer of the first one. NULL: an earlier release has stored it, and its state has to do until it
-- is stored or compared again.
ALTER TABLE billing_subscriptions
    ADD COLUMN standing smallint CHECK (standing BETWEEN 0 AND 4), -- the highest is first
    ADD COLUMN priority integer NOT NULL DEFAULT 0;                -- of the price that decides; of equal standings, the highest is first
