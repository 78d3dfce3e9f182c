-- How the state of a fixed window is stored: version and algorithm 1 byte, end of the last counted
-- window 6, count 7, and of a calendar's window its length in whole seconds 4. The bounds of a
-- calendar's windows come with the call, two windows at a time.

-- The end, the count and the length, or nil of what is no such value.
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

-- The end of the calendar window that t is in, and its length. It is one of two: the first starts
-- at starts and ends at ends, the second ends at the instant following.
local function calendar_window(t, starts, ends, following)
  if t < ends then return ends, floor((ends - starts) / 1000) end
  return following, floor((following - ends) / 1000)
end
