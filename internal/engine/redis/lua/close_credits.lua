-- Closes all grants of a purse, because they are to be opened at another hash tag. Checks cannot
-- spend them here until they are opened here again.
--
-- KEYS     the two keys of credits.lua
-- ARGV[1]  instants before and after the grants were read elsewhere, in microseconds, 7 each; then
--          for each grant its id 16, packed little-endian
-- reply    for each grant what was spent of it here, as far as it is known here; nothing if another
--          opening or closing is as new, and then the grants stay as they are
--
-- Example: the first key has 23 units spent of grant g, and nobody has settled them.
--   ARGV[1]  500, 600; g, h
--   reply    23, 0
-- The key keeps the total, its version is CLOSED, and its last opening is that of 600. So an
-- opening that was read before 600 and arrives later opens nothing. The twin is Memory.CloseCredits
-- in memory_credits.go.
--
-- A key without grants only keeps older openings from opening something, and is_older applies to
-- them for half of CLOSED_LIFE at most. After a change of partitions there is such a key for each
-- subject with credits that has moved since.
--
-- A total that is neither in the first key nor in the outbox was settled before: who reads it
-- elsewhere after this reply gets it.

local CLOSED_LIFE = 1200000 -- 20 minutes

local asked, read = decode('<I7I7', ARGV[1])
local v, _, first, last = read_opened()
if is_older(asked, last) then return {} end
local totals = {}
for at = 15, #ARGV[1], 16 do
  local id = string.sub(ARGV[1], at, at + 15)
  local j = place_of(v, id)
  local here = j and decode('<I7', v, j + 16) or 0
  local unsettled = try('HGET', KEYS[2], id)
  totals[#totals + 1] = max(here, type(unsettled) == 'string' and tonumber(unsettled) or 0)
end
local closed = string.char(CLOSED) .. encode('<c16I7I6', LAST_OPENING, read, 0) .. string.sub(v, first)
call('SET', KEYS[1], closed, 'PX', first > #v and CLOSED_LIFE or CREDITS_LIFE)
return totals
