-- Does for sub-buckets what coarse_log.lua does for logs: with at least 10 of them, the newest one
-- becomes the current one if both begin in the same twentieth of a window. The twin is Growing in
-- growing.go.
--
-- In       a counter s, as sliding_window_buckets.lua has read it
-- Out      algorithms[3].charge, which replaces the one of that file
--
-- Example: a window of 120000 in sub-buckets of 1000, parts of 6000. The newest of 12 is number 72,
-- which begins at 72000. A charge at 75500 makes it number 75 and adds its cost to it.

local charge_exactly = algorithms[3].charge

algorithms[3].charge = function(s, cost)
  local last, part = #s.numbers, max(1, floor(s.window / 20))
  if last >= 10 and floor(s.numbers[last] * s.extra / part) == floor(s.at * s.extra / part) then
    s.numbers[last] = s.at
  end
  return charge_exactly(s, cost)
end
