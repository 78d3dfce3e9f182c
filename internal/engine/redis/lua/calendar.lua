-- Where fixed windows end: the twin of windowEnd.

local DAY = 86400000

-- The first day after the month of a day, both counted from 1970. Years begin in March here, so
-- that the day of leap years is their last.
local function month_end(day)
  local z = day + 719468
  local era = floor(z / 146097)
  local d = z - era * 146097
  local year = floor((d - floor(d / 1460) + floor(d / 36524) - floor(d / 146096)) / 365)
  local first = 365 * year + floor(year / 4) - floor(year / 100)
  local month = floor((5 * (d - first) + 2) / 153)
  if month < 11 then return day - d + first + floor((153 * (month + 1) + 2) / 5) end
  year = year + 1
  first = 365 * year + floor(year / 4) - floor(year / 100) + floor(year / 400)
  return day - d + first
end

-- The first instant after the aligned window that t is in.
local function window_end(t, window, calendar)
  if calendar == 0 then return t - t % window + window end
  if calendar == 1 then return t - t % DAY + DAY end
  if calendar == 2 then return t - (t - 4 * DAY) % (7 * DAY) + 7 * DAY end -- day 4 was a Monday
  return month_end(floor(t / DAY)) * DAY
end

