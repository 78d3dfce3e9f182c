ALTER TABLE metered_push_problems DROP COLUMN unanswered_at;
