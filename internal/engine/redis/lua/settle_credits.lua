-- Removes totals from an outbox of credits.lua that were stored, if they have not changed since.
--
-- KEYS     the outbox
-- ARGV     for each grant its id and the total that was stored
-- reply    the number of totals that were removed
--
-- Example: the outbox has 23 for grant g. With ARGV { g, "23" } it is removed, and the reply is 1.
-- With ARGV { g, "20" } it stays: 3 units were spent after 20 was stored. The twin is
-- Memory.SettleCredits in memory_credits.go.

local removed = 0
for i = 1, #ARGV, 2 do
  if try('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    removed = removed + call('HDEL', KEYS[1], ARGV[i])
  end
end
return removed
