-- The twin of sliding_window_counter.go. The storage format is in counter_value.lua; s.extra is the
-- base.

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
