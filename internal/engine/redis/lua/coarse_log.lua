-- Keeps the logs of a tenant small that may store no more, in the form of a script for bounded
-- calls. A log with at least 10 entries that count gets no further entry in the same twentieth of a
-- window: its newest entry moves to the instant of the charge. Its units then count for up to a
-- twentieth of the window longer, so a log can deny early, but never allows more than its limit.
-- The twin is Growing in growing.go.
--
-- In       a counter s, as sliding_window_log.lua has read it
-- Out      algorithms[2].charge, which replaces the one of that file
--
-- Example: a window of 60000, parts of 3000. The newest of 12 entries is at 75100. A charge at
-- 77000 moves it to 77000 and adds its cost to it. A charge at 78000, the next part, adds an entry.

local charge_exactly = algorithms[2].charge

algorithms[2].charge = function(s, cost)
  local part = max(1, floor(s.window / 20))
  if s.count - s.first + 1 < 10 or floor(s.newest / part) ~= floor(s.at / part) then
    return charge_exactly(s, cost)
  end
  s.total, s.newest = s.total + cost, s.at
end
