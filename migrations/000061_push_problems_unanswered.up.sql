-- A subject whose units may have been sent without an answer keeps the time of that attempt while it
-- has no customer: the provider forgets the identifier of the event after a day.
ALTER TABLE metered_push_problems ADD COLUMN unanswered_at timestamptz; -- null: it was not sent
