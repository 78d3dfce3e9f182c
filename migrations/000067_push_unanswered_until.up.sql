-- The last subject of the part of a push that may have been sent without an answer: later subjects
-- were not. '': earlier versions have claimed it, and it is the next 160 subjects with units.
ALTER TABLE metered_pushes ADD COLUMN unanswered_until text COLLATE "C" NOT NULL DEFAULT '';
