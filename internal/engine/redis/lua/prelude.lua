-- Definitions for all parts of the scripts. The script of a call consists of this file, the files
-- of the algorithms of the call's counters, and evaluate_one.lua, which defines KEYS, ARGV and the
-- reply. Most calls use evaluate_many.lua instead, which needs none of the algorithms' files.
--
-- An algorithm is a table of functions on a counter s:
--   read(s, t)        reads the state and sets s.used: the units that count against the quota at t,
--                     rounded up to whole units
--   when(s, t, m)     returns the earliest instant at which used <= m; called only if s.used > m
--   charge(s, cost, t) adds cost to s (the caller changes s.used); writes nothing
--   write(s, ttl, t)  stores s for ttl milliseconds
--   ends(s)           optional: until when the state must be kept; default: until it is full
--   delay(s, t)       optional: how long an allowed request must wait
--   heal(s, ttl)      optional: corrects the stored value if nothing is charged: a missing expiry,
--                     or the window's new end
-- s has the fields key, number (of the algorithm), limit, window, extra (the burst of a bucket, the
-- length of a sub-bucket) and bounds (for calendar windows; otherwise nil). read sets s.stale if t
-- is in neither window of the bounds.
--
-- Example: fixed_window.lua has a fixed window of 10 a minute with a count of 8. read sets s.used
-- to 8. when(s, t, 0) is the end of the window. charge(s, 2, t) and write(s, ttl) store
-- the count 10.
--
-- Stored values are packed little-endian. The first byte has the format version (16 per version)
-- and the algorithm. A value that has another form or is out of range counts as absent, sets
-- s.foreign, and is overwritten by the next charge.
--
-- All numbers are whole and below 2^53. They are passed to redis.call as numbers or packed, because
-- tostring keeps only 14 digits.

local call, try, encode, decode = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, max, min = math.floor, math.max, math.min
local VERSION = 16
local HORIZON = 34359738368 -- 2^35 ms: an instant further in the future is invalid
local MOST = 1000000000 -- maximum limit, burst and cost, except for fixed windows
local SLACK = 1000 -- ms added to every expiry, in case the clock steps back
local VIRTUAL_LIFE = 600000 -- minimum expiry if the caller sets the time, which expiry ignores

-- floor((a*b + add) / c) and the remainder, for a < 2^30 and b, c, add < 2^35: split so that
-- every intermediate is below 2^52, where doubles are exact. The twin is MulDiv in muldiv.go.
local function muldiv(a, b, c, add)
  local ah = floor(a / 32768)
  local x = ah * b
  local q1 = floor(x / c)
  local y = (x - q1 * c) * 32768 + (a - ah * 32768) * b + add
  local q2 = floor(y / c)
  return q1 * 32768 + q2, y - q2 * c
end
