-- Where a rule's units are given out: strict by the counter store, check by check; leased by each instance,
-- which takes units of a busy counter ahead. The default lets servers go on that know nothing of it.
ALTER TABLE rules
    ADD COLUMN consistency text NOT NULL DEFAULT 'strict' CHECK (consistency IN ('strict', 'leased')),
    -- What cannot be charged ahead of being asked for, cannot be leased.
    ADD CHECK (consistency = 'strict'
        OR algorithm NOT IN ('sliding_window_log', 'leaky_bucket_queue') AND penalty_ms IS NULL);
