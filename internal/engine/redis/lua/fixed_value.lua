-- The storage format of a fixed window: version and algorithm 1 byte, end of the last counted
-- window 6, count 7, and for a calendar window its length in whole seconds 4. The bounds of
-- calendar windows are arguments of the call, two windows at a time.
--
-- In       the end, the count and the length; or a stored value and the number of the algorithm
-- Out      the value to store; or the end, the count and the length
--
-- Example: fixed_encode(4, 60000, 8, 0) is 14 bytes: 20 (VERSION + 4), 60000, 8. fixed_decode of it
-- returns 60000, 8, 0. A day of 86400 s makes 18 bytes.

-- Returns the end, the count and the length, or nil if the value is invalid.
local function fixed_decode(v, number)
  local size = #v
  if (size ~= 14 and size ~= 18) or string.byte(v) ~= VERSION + number then return nil end
  local _, ends, count = decode('<BI6I7', v)
  if size == 14 then return ends, count, 0 end
  return ends, count, (decode('<I4', v, 15))
end

local function fixed_encode(number, ends, count, seconds)
  if seconds == 0 then return encode('<BI6I7', VERSION + number, ends, count) end
  return encode('<BI6I7I4', VERSION + number, ends, count, seconds)
end

-- Returns the end of the calendar window that contains t, and its length. It is one of two windows:
-- the first from starts to ends, the second from ends to following. The twin is Bounds.At in
-- bounds.go.
local function calendar_window(t, starts, ends, following)
  if t < ends then return ends, floor((ends - starts) / 1000) end
  return following, floor((following - ends) / 1000)
end
