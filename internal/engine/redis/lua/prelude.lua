-- What every part of the scripts uses. The script of a call is this file, then the files of the
-- algorithms that the call's counters have, then evaluate_one.lua, which says what KEYS, ARGV and
-- the reply are. Most calls do with evaluate_many.lua instead, which needs no algorithm's file.
--
-- An algorithm is a table of functions on a counter s:
--   read(s, t)        fetches the state, sets s.used: what counts against the quota at t, whole
--                     units, rounded up
--   when(s, t, m)     the earliest instant at which used <= m; asked only while s.used > m
--   charge(s, cost, t) counts cost in s (s.used is main's affair); writes nothing
--   write(s, ttl, t)  stores s for ttl milliseconds
--   ends(s)           optional: until when it must be kept, if not only until it is whole
--   delay(s, t)       optional: how long an admitted request must be held
--   heal(s, ttl)      optional: corrects what is stored where nothing is charged: gives a value
--                     without an expiry one, or the window's new end
-- and s holds key, number (of the algorithm), limit, window, extra (the burst of a bucket, the
-- sub-bucket's length), bounds (of a calendar's windows; nil of any other). read sets s.stale where
-- t is in neither window of the bounds.
--
-- Stored values are packed little-endian and begin with a byte that tells format version (16
-- per version) and algorithm. A value that is not of that form, or out of range, is read as
-- absent, marked in s.foreign and overwritten by the next charge.
--
-- All numbers are whole and below 2^53. They go to redis.call as numbers or packed: tostring
-- keeps 14 digits only.

local call, try, encode, decode = redis.call, redis.pcall, struct.pack, struct.unpack
local floor, max, min = math.floor, math.max, math.min
local VERSION = 16
local HORIZON = 34359738368 -- 2^35 ms: no working clock writes instants further ahead
local MOST = 1000000000 -- of limits, bursts and costs but the fixed windows'
local SLACK = 1000 -- ms added to every expiry, against a clock that steps back
local VIRTUAL_LIFE = 600000 -- least expiry where the caller sets the time, which expiry ignores
local algorithms = {}

-- floor((a*b + add) / c) and the remainder, for a < 2^30 and b, c, add < 2^35: split so that
-- every intermediate is below 2^52, where doubles are exact.
local function muldiv(a, b, c, add)
  local ah = floor(a / 32768)
  local x = ah * b
  local q1 = floor(x / c)
  local y = (x - q1 * c) * 32768 + (a - ah * 32768) * b + add
  local q2 = floor(y / c)
  return q1 * 32768 + q2, y - q2 * c
end

-- What a reading command says of a key of counter s, or nil where that is of another type.
local function fetch(s, command, key, from, to)
  local v
  if from then v = try(command, key, from, to) else v = try(command, key) end
  if type(v) ~= 'table' then return v or nil end
  if not string.find(v.err, 'WRONGTYPE', 1, true) then error(v) end
  s.foreign = true
end
