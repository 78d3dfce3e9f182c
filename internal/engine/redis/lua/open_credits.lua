-- Opens grants: stores how many of their units were spent before, so that checks can spend the rest
-- (credits.lua). A total that is stored already is never reduced.
--
-- KEYS     the key of credits.lua
-- ARGV[1]  for each grant its id 16, the units spent in total 7, its expiry in milliseconds 6
--          (0: never), packed little-endian
-- reply    the number of grants that were not open
--
-- Example: the key has 23 units spent of grant g.
--   ARGV[1]  g, 20, 0; h, 5, 0
--   reply    1: h was not open
-- The key now has 23 units spent of g and 5 of h. The twin is Memory.OpenCredits in
-- memory_credits.go.

local v = try('GET', KEYS[1])
local opened = 0
if type(v) ~= 'string' or string.byte(v) ~= CREDITS or #v % GRANT_SIZE ~= 1 then v = string.char(CREDITS) end
for at = 1, #ARGV[1], GRANT_SIZE do
  local id, spent, till = decode('<c16I7I6', ARGV[1], at)
  local known = false
  for j = 2, #v, GRANT_SIZE do
    if string.sub(v, j, j + 15) == id then
      known = true
      local _, before = decode('<c16I7', v, j)
      v = string.sub(v, 1, j - 1) .. encode('<c16I7I6', id, max(before, spent), till) .. string.sub(v, j + GRANT_SIZE)
    end
  end
  if not known then
    opened = opened + 1
    v = v .. encode('<c16I7I6', id, spent, till)
  end
end
call('SET', KEYS[1], v, 'PX', CREDITS_LIFE)
return opened
