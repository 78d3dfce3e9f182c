-- Deletes a counter, under its own key and in its group.
--
-- KEYS     its own key, and that of its penalty mark
-- ARGV[1]  the rule's id 9 (group.lua)
-- reply    0
--
-- Example: two rules have the counts 3 and 5 in one group. forget for the first one leaves a group
-- with the count 5, under the same key.

call('UNLINK', KEYS[1], KEYS[2])
group_leave(key_beside(KEYS[1], ARGV[1], -1), ARGV[1])
return 0
