ALTER TABLE metered_pushes DROP COLUMN unanswered_until;
