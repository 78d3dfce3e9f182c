-- Both fixed windows, as prelude.lua describes algorithms. The twin is fixed_window.go, with
-- openSpan and Remaining for read, when, Charge, and Follow for heal. The storage format is in
-- fixed_value.lua.
--
-- In       a counter s: limit, window, and for calendar windows bounds
-- Out      s.used, the count; s.ends, the end of the window, 0 if none is open
--
-- Example: a limit of 10 per 60000 ms, at 61500. A charge of 3 opens the window that ends at
-- 120000, with the count 3. With fixed_window_first_hit it ends at 121500.

local fixed = {
  read = function(s, t)
    s.used, s.ends = 0, 0
    s.stale = s.bounds and (t < s.bounds[1] or t >= s.bounds[3])
    local v = own_value(s)
    if not v then return end
    local ends, count, seconds = fixed_decode(v, s.number)
    if not ends or ends - t >= HORIZON or count > 1000000000000000 then
      s.foreign = true
      return
    end
    if t >= ends then return end
    if s.bounds and t >= ends - 1000 * seconds then
      local finish, length = calendar_window(t, unpack(s.bounds))
      s.follows = finish ~= ends
      ends, seconds = finish, length
    end
    s.used, s.ends, s.seconds = count, ends, seconds
  end,
  when = function(s) return s.ends end,
  charge = function(s, cost, t)
    if s.ends ~= 0 then return end
    if s.number == 5 then
      s.ends, s.seconds = t + s.window, 0
    elseif s.bounds then
      s.ends, s.seconds = calendar_window(t, unpack(s.bounds))
    else
      s.ends, s.seconds = t - t % s.window + s.window, 0
    end
  end,
  write = function(s, ttl)
    call('SET', s.key, fixed_encode(s.number, s.ends, s.used, s.seconds), 'PX', ttl)
    leave_group(s)
  end,
}
-- A window that was not charged also gets the bounds of its rule's current schedule.
fixed.heal = function(s, ttl)
  if s.follows then fixed.write(s, ttl) end
end
algorithms[4], algorithms[5] = fixed, fixed
