-- Both fixed windows, the twin of fixed_window.go. Value: version and algorithm 1 byte, end of
-- the last counted window 6, count 7.

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
local function window_end(s, t)
  if s.calendar == 1 then return t - t % DAY + DAY end
  if s.calendar == 2 then return t - (t - 4 * DAY) % (7 * DAY) + 7 * DAY end -- day 4 was a Monday
  if s.calendar == 3 then return month_end(floor(t / DAY)) * DAY end
  return t - t % s.window + s.window
end

local fixed = {
  read = function(s, t)
    s.used, s.ends = 0, 0
    local v = fetch(s, 'GET', s.key)
    if not v then return end
    if #v == 14 and string.byte(v) == VERSION + s.number then
      local _, ends, count = decode('<BI6I7', v)
      if ends - t < HORIZON and count <= 1000000000000000 then
        if t < ends then s.used, s.ends = count, ends end
        return
      end
    end
    s.foreign = true
  end,
  when = function(s) return s.ends end,
  charge = function(s, cost, t)
    if s.ends == 0 then
      if s.number == 5 then s.ends = t + s.window else s.ends = window_end(s, t) end
    end
  end,
  write = function(s, ttl)
    call('SET', s.key, encode('<BI6I7', VERSION + s.number, s.ends, s.used), 'PX', ttl)
  end,
}
algorithms[4], algorithms[5] = fixed, fixed
