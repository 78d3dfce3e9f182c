-- Deletes a counter, under its own key and in its group.
--
-- KEYS its own key, and that of its penalty mark ARGV[1] the rule's id 9

call('UNLINK', KEYS[1], KEYS[2])
group_leave(key_beside(KEYS[1], ARGV[1], -1), ARGV[1])
return 0
