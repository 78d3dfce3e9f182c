-- Both fixed windows, the twin of fixed_window.go. Value: version and algorithm 1 byte, end of
-- the last counted window 6, count 7.

local fixed = {
  read = function(s, t)
    s.used, s.ends = 0, 0
    local v = own_value(s)
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
      if s.number == 5 then s.ends = t + s.window else s.ends = window_end(t, s.window, s.calendar) end
    end
  end,
  write = function(s, ttl)
    call('SET', s.key, encode('<BI6I7', VERSION + s.number, s.ends, s.used), 'PX', ttl)
    leave_group(s)
  end,
}
algorithms[4], algorithms[5] = fixed, fixed
