-- The arguments of evaluate_one.lua in the form for a slot that is being moved to this node. Its
-- keys are not declared, because Redis would refuse several of which one does not exist.
--
-- ARGV     the keys, which are KEYS otherwise; then ARGV[1] and ARGV[2] of evaluate_one.lua
-- out      KEYS and ARGV of evaluate_one.lua
--
-- Example: ARGV { "w{..}key", "w{..}mark", numbers, bounds } becomes KEYS { "w{..}key",
-- "w{..}mark" } and ARGV { numbers, bounds }.

local KEYS, ARGV = ARGV, { unpack(ARGV, #ARGV - 1) }
