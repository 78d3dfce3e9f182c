-- What a rule does with a check without an attribute that the rule counts by. NULL: it counts by no
-- attribute, or was written by a server that does not know the column and skips the rule.
ALTER TABLE rules
    ADD COLUMN on_missing_attribute text CHECK (on_missing_attribute IN ('skip', 'deny'));
