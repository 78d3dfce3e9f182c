-- Two counts, of which the previous one is weighted, as prelude.lua describes algorithms. The twin
-- is sliding_window_counter.go, with at and used for read, when, and Charge. evaluate_many.lua
-- decides the same in counter_at. The storage format is in counter_value.lua.
--
-- In       a counter s: limit, window; extra, the base of counter_value.lua
-- Out      s.used; s.index, the number of the current window; s.cur and s.prev, its count and that
--          of the previous window
--
-- Example: a window of 60000, at 75000: window 1, of which 15000 have passed. With the counts 4 now
-- and 8 before, s.used is 4 + floor(8 * 45000 / 60000) = 10.

algorithms[1] = {
  read = function(s, t)
    local w = s.window
    local index = floor(t / w)
    local elapsed = t - index * w
    local cur, prev = 0, 0
    local v = own_value(s)
    if v then
      local i, c, p = counter_decode(v, s.extra)
      local known = i and i * w - t < HORIZON and c <= MOST and p <= MOST
      if not known then
        s.foreign = true
      elseif i > index then -- the clock stepped back
        index, elapsed, cur, prev = i, 0, c, p
      elseif i == index then
        cur, prev = c, p
      elseif i == index - 1 then
        prev = c
      end
    end
    s.index, s.cur, s.prev = index, cur, prev
    s.used = cur
    if prev > 0 then s.used = cur + muldiv(prev, w - elapsed, w, 0) end
  end,
  when = function(s, t, m)
    local start, count, rest = s.index * s.window, s.prev, m - s.cur
    if rest < 0 then -- cur alone is too much: it must become the window before
      start, count, rest = start + s.window, s.cur, m
    end
    return start + s.window - muldiv(rest + 1, s.window, count, count - 1) + 1
  end,
  ends = function(s) return (s.index + 2) * s.window end,
  charge = function(s, cost) s.cur = s.cur + cost end,
  write = function(s, ttl)
    call('SET', s.key, counter_encode(s.index, s.cur, s.prev, s.extra), 'PX', ttl)
    leave_group(s)
  end,
}
