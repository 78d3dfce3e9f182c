-- Counts by parts of the window, as prelude.lua describes algorithms. The twin is
-- sliding_window_buckets.go, with at and Remaining for read, when, and Charge.
--
-- In       a counter s: limit, window; extra, the length of a sub-bucket
-- Out      s.used; s.at, the number of the newest sub-bucket; s.numbers and s.counts, those with a
--          count, oldest first
--
-- Example: a window of 60000 in parts of 10000, at 75000: part 7. The parts 1, 3 and 7 have the
-- counts 5, 2 and 1. Part 1 has left the window, and s.used is 3. when(s, t, 1) is 90000, when part
-- 3 leaves it.
--
-- Value: version and algorithm 1 byte, number of the newest
-- sub-bucket 6, then for each sub-bucket with a count, oldest first: the distance of its number
-- from the newest 1, count 4.

algorithms[3] = {
  read = function(s, t)
    local precision = s.extra
    local number = floor(t / precision)
    local numbers, counts = {}, {}
    s.used = 0
    local v = fetch(s, 'GET', s.key)
    if v then
      local size = (#v - 7) / 5
      local known = size >= 1 and size <= 120 and size == floor(size) and string.byte(v) == VERSION + 3
      if known then
        local _, newest = decode('<BI6', v)
        known = newest * precision - t < HORIZON
        if known then
          number = max(number, newest)
          local oldest = number - s.window / precision + 1
          local parts = { decode('<' .. string.rep('BI4', size), v, 8) }
          for i = 1, 2 * size, 2 do
            local count = parts[i + 1]
            if count > MOST then known = false end
            if newest - parts[i] >= oldest then
              numbers[#numbers + 1] = newest - parts[i]
              counts[#counts + 1] = count
              s.used = s.used + count
            end
          end
        end
      end
      if not known then
        number, numbers, counts, s.used, s.foreign = floor(t / precision), {}, {}, 0, true
      end
    end
    s.at, s.numbers, s.counts = number, numbers, counts
  end,
  when = function(s, t, m)
    local rest, i = s.used, 0
    while rest > m do
      i = i + 1
      rest = rest - s.counts[i]
    end
    return s.numbers[i] * s.extra + s.window
  end,
  charge = function(s, cost)
    local last = #s.numbers
    if s.numbers[last] ~= s.at then
      last = last + 1
      s.numbers[last], s.counts[last] = s.at, 0
    end
    s.counts[last] = s.counts[last] + cost
  end,
  write = function(s, ttl)
    local parts, size = {}, #s.numbers
    for i = 1, size do
      parts[2 * i - 1], parts[2 * i] = s.at - s.numbers[i], s.counts[i]
    end
    local v = encode('<BI6' .. string.rep('BI4', size), VERSION + 3, s.at, unpack(parts))
    call('SET', s.key, v, 'PX', ttl)
  end,
}
