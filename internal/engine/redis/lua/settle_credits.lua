-- Removes totals from an outbox of credits.lua that were stored, if they have not changed since.
--
-- KEYS     the outbox
-- ARGV     for each grant its id and the total that was stored
-- reply    the number of totals that were removed

local removed = 0
for i = 1, #ARGV, 2 do
  if try('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then
    removed = removed + call('HDEL', KEYS[1], ARGV[i])
  end
end
return removed
