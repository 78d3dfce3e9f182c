-- Opens grants: stores how many of their units were spent before, so that checks can spend the rest
-- (credits.lua). A total that is stored already is never reduced.
--
-- KEYS     the two keys of credits.lua
-- ARGV[1]  instants before and after the grants were read elsewhere, in microseconds, 7 each; 1 if
--          nothing is left of any other grant, else 0, 1; the instant in milliseconds at which this
--          server is known to have lost data, 0 for never, 6; then for each grant its id 16, the
--          units spent in total 7, its expiry in milliseconds 6 (0: never), packed little-endian
-- reply    the number of grants that were not open, or of which less was stored; -1: some stay
--          closed, because what was read is older than another opening
--
-- Example: the first key has 23 units spent of grant g.
--   ARGV[1]  0, 0, 0, 0; g, 20, 0; h, 5, 0
--   reply    1: h was not open
-- The key now has 23 units spent of g and 5 of h, and the instant of this opening. The twin is
-- Memory.OpenCredits in memory_credits.go.
--
-- If the value would become long, grants that are not in the list are removed: nothing is left of
-- them, so none is opened again with less than was spent of it. That needs an order. A list that
-- was read before another opening may lack a grant that has been opened since, or may have a grant
-- that was removed since, with an older total. So the value has the instant of its last opening,
-- and a list that may be older only raises totals. A total in the outbox may be newer than those
-- of the list. The same applies to those of grants that were closed (close_credits.lua).

local MOST_KEPT = 100 -- limit.MostKeptGrants

local asked, read, complete, lost = decode('<I7I7BI6', ARGV[1])
local v, shut, first, last = read_opened()
local count = (#v + 1 - first) / GRANT_SIZE

-- One pass over the list, and none over the value, which may be very long (MOST_READ).
local ids, spents, tills, closed, raised, last_till = {}, {}, {}, {}, 0, 1
for at = 22, #ARGV[1], GRANT_SIZE do
  local n = #ids + 1
  ids[n], spents[n], tills[n] = decode('<c16I7I6', ARGV[1], at)
  if last_till > 0 then last_till = tills[n] > 0 and max(last_till, tills[n]) or 0 end
  local j = place_of(v, ids[n])
  local before = j and decode('<I7', v, j + 16)
  if not j or shut then
    closed[#closed + 1] = n
    spents[n] = max(spents[n], before or 0)
  elseif before < spents[n] then
    raised = raised + 1
    v = string.sub(v, 1, j + 15) .. encode('<I7', spents[n]) .. string.sub(v, j + 23)
  else
    spents[n] = before
  end
end

local older = is_older(asked, last)
local long = shut or complete == 1 and count + #closed > MOST_KEPT -- only those of the list are kept
local opened = #closed
if shut and older then return opened > 0 and -1 or 0 end -- as it is, also when it expires
local changes = not older and (opened > 0 or long)
local changed_at = last -- of the grants that are open
if changes then
  for _, n in ipairs(closed) do -- by HGET, because users that operators created may not use HMGET
    local total = try('HGET', KEYS[2], ids[n])
    if type(total) == 'string' then spents[n] = max(spents[n], tonumber(total) or 0) end
  end
  changed_at = read
  local parts = {}
  if long then
    for n = 1, #ids do closed[n] = n end
  else
    parts[1] = string.sub(v, first)
  end
  for i = 1, #closed do
    local n = closed[i]
    parts[#parts + 1] = encode('<c16I7I6', ids[n], spents[n], tills[n])
  end
  v = table.concat(parts)
else
  v = string.sub(v, first)
end
local time = call('TIME')
local now = max(lost, time[1] * 1000 + floor(time[2] / 1000)) -- lost is later if the clock stepped back
v = string.char(CREDITS) .. encode('<c16I7I6', LAST_OPENING, changed_at, now) .. v
if older then
  call('SET', KEYS[1], v, 'KEEPTTL')
else
  call('SET', KEYS[1], v, 'PX', credits_life(last_till, now))
end
if opened > 0 and not changes then return -1 end
return opened + raised
