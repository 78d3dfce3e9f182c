-- Changes counters once because the limits of their subject changed (engine.Amendment).
--
-- KEYS     a mark of what was done; the number of the newest change of the tenant that was done
--          here; for each counter its key and that of its penalty mark
-- ARGV[1]  the number of the change 7, the instant in milliseconds 6 (0: this server's clock),
--          flags 1 (1 reset, 2 another run with more counters follows); then for each counter
--          algorithm 1, limit 7, window 5, extra 5 and id 9 as in evaluate_one.lua, the new limit
--          7, for a bucket the new burst 5, and flags 1 (1 both numbers allow overage, 2 units may
--          be held); all packed little-endian
-- reply    the work that was done, or 0 if all of this was done before: 2 for the run, and for each
--          counter 1, and more for long logs and many sub-buckets. A unit takes about 15 us.
--
-- A change with much work takes several runs, so that no other command waits long. Until the last
-- run, the mark has the ends of the keys of the counters that were changed, 9 bytes each. A run
-- leaves these out, so a change that is repeated after a failure changes each counter once. After
-- the last run, the number says that it was done: the changes of a tenant are carried out in the
-- order of their numbers, so all before it were done, too.
--
-- The used share of the quota stays the same. Counts are scaled by the ratio of the limits, and
-- the time until a bucket is full by the ratios of the limits and of the bursts. Results are
-- rounded up, and at most the whole quota: units beyond it stay only with overage in both numbers,
-- and then as they are. The twin is Scale in scale.go.
--
-- If units of a counter may be held by instances or clients, they return later. So the change is
-- stored beside the counter, for refund.lua: version 1 byte, and for each of the latest changes
-- its instant 6, the new limit 7 and the old limit 7. If the new limit is 0, nothing returns.
--
-- Example: a fixed window of 100 holds a count of 25. The limit becomes 1000.
--   KEYS     { mark, number, "w{..}key", "w{..}mark" }
--   ARGV[1]  7, 0, 0; one counter: 4 (fixed_window), 100, 60000, 0, nine zeros, 1000, 0, 0
--   reply    3
-- The count is now 250: a quarter of the limit, as before. The same call again replies 0.

-- A change is repeated each second until its row is deleted in Postgres, whatever the window of its
-- counters is: if it were done again after their windows have ended, it would scale the usage of
-- the new ones. Each repetition renews the number, so it must outlive only a time in which the row
-- cannot be read: an outage of Postgres, over a weekend.
local MARK_LIFE = 3 * 86400000
-- Servers of earlier versions, which run beside this one during an upgrade, look for the mark "1",
-- and not for the number. They repeat what they have listed before, soon.
local DONE_MARK_LIFE = 60000
local TOGETHER = 100 -- entries of a log
local SCALING_LIFE = 60000 -- limit.ScalingLifeMS
local MOST_SCALINGS = 8

local change_number, now, flags = decode('<I7I6B', ARGV[1])
local done = try('GET', KEYS[1]) or ''
if type(done) == 'table' or done == '1' or (tonumber(try('GET', KEYS[2])) or 0) >= change_number then
  call('PEXPIRE', KEYS[2], MARK_LIFE)
  return 0
end

local reset, follows = flags % 2 == 1, flags > 1
local virtual = now > 0
if not virtual then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

-- Returns the part of a key by which the mark names a counter, or nil if its change was done.
local function name_to_do(key)
  local name = sub(key, -9)
  local at = find(done, name, 1, true)
  while at do
    if at % 9 == 1 then return nil end
    at = find(done, name, at + 1, true)
  end
  return name
end

-- ceil(a*to/of), at most most. The twin is Share.up.
local function up(a, to, of, most)
  if a <= 0 then return 0 end
  if to == of then return min(a, most) end
  local quotient, rest = ratio(a, to, of, most)
  if rest > 0 then quotient = quotient + 1 end
  return min(quotient, most)
end

-- Returns a count under the limit to. Without a bound it may be beyond the quota. The twins are
-- change.count and change.sum.
local function scaled(a, s, to, over, most, unbound)
  if over then return min(up(min(a, s.limit), to, s.limit, most) + max(0, a - s.limit), most) end
  if not unbound then most = min(to, most) end
  return up(a, to, s.limit, most)
end

-- Returns by how much the sum of all counts is beyond the quota. The twin is change.excess.
local function excess_of(total, s, to, over)
  if over then return 0 end
  return max(0, up(total, to, s.limit, MOST) - to)
end

-- Each sum of the first counts, oldest first, changes by the ratio. What is beyond the quota is
-- taken from the oldest ones. The twin is change.sums.
local function scale_sums(s, to, over)
  local before, after = 0, 0
  local excess = excess_of(s.used, s, to, over)
  for i = 1, #s.counts do
    before = before + s.counts[i]
    local sum = max(0, scaled(before, s, to, over, MOST, true) - excess)
    s.counts[i], after = sum - after, sum
  end
end

-- Returns the scaled value of a log, and until when it counts. The log is read at once, and many
-- entries are decoded by one call: it may have 10000. The twin is slidingWindowLog.scale. Without
-- overage and with a small product, the sums are scaled without a call for each.
local function scale_log(s, to, over)
  local v, last = call('GET', s.key), 0
  local parts = { encode('<BI6', VERSION + 2, 0) }
  local before, of, all = s.before, s.limit, s.total - s.before
  local excess = excess_of(all, s, to, over)
  local direct = not over and all * to < 4503599627370496 and all * to < MOST * of
  local hundred = '<' .. rep('I6I6', TOGETHER)
  for i = s.first, s.count, TOGETHER do
    local n, form = min(TOGETHER, s.count - i + 1), hundred
    if n < TOGETHER then form = '<' .. rep('I6I6', n) end
    local entries = { decode(form, v, HEAD + (i - 1) * ENTRY + 1) }
    for j = 2, 2 * n, 2 do
      local sum = entries[j] - before
      if direct and sum <= all then
        sum = floor((sum * to + of - 1) / of) - excess
      else
        sum = scaled(sum, s, to, over, MOST, true) - excess
      end
      entries[j] = sum > 0 and sum or 0
    end
    last = entries[2 * n - 1]
    parts[#parts + 1] = encode(form, unpack(entries, 1, 2 * n))
  end
  return table.concat(parts), last + s.window
end

-- Scales both counts. The twin is slidingWindowCounter.scale.
local function scale_counter(s, now, to, over)
  s.cur, s.prev = scaled(s.cur, s, to, over, MOST), scaled(s.prev, s, to, over, MOST, true)
  local weight = min(s.window, (s.index + 1) * s.window - now)
  local rest = to - s.cur
  if not over and muldiv(s.prev, weight, s.window, 0) > rest then
    s.prev = min(s.prev, muldiv(rest + 1, s.window, weight, weight - 1) - 1)
  end
end

-- Stores that a counter is scaled. The twin is limit.AppendScaling.
local function remember(s, now, to)
  local v, kept = try('GET', s.key .. ':s'), {}
  if type(v) == 'string' and byte(v) == VERSION then
    for at = 2, #v - 19, 20 do
      if decode('<I6', v, at) + SCALING_LIFE > now then kept[#kept + 1] = sub(v, at, at + 19) end
    end
  end
  if #kept == MOST_SCALINGS then
    table.remove(kept, 1)
    local instant, _, of = decode('<I6I7I7', kept[1])
    kept[1] = encode('<I6I7I7', instant, 0, of)
  end
  kept[#kept + 1] = encode('<I6I7I7', now, to, s.limit)
  call('SET', s.key .. ':s', encode('<B', VERSION) .. table.concat(kept), 'PX', virtual and VIRTUAL_LIFE or SCALING_LIFE)
end

local work = 2

-- Changes counter i, and notes that.
local function change(i)
  local number, lim, window, extra, id, to, burst, both = decode('<BI7I5I5c9I7I5B', ARGV[1], 40 * i - 25)
  local over, held = both % 2 == 1, both > 1
  local key = KEYS[2 * i + 1]
  local name = name_to_do(key)
  work = work + 1
  if name and reset then
    if id ~= NO_ID then group_leave(key_beside(key, id, -1), id) end -- first: this may fail, see below
    call('UNLINK', key, KEYS[2 * i + 2])
  elseif name then
    local s = {
      key = key, number = number, limit = lim, window = window, extra = extra, id = id, used = 0, index = 0, cur = 0, prev = 0,
    }
    local algorithm = algorithms[number]
    algorithm.read(s, now)
    if not s.foreign and (s.used > 0 or number == 1 and s.prev > 0) then
      local till
      -- What is beyond the limit is forgotten, and it is not known whose units that were. A bucket
      -- is charged in time, whose rounding depends on the limit.
      if held then remember(s, now, (number > 5 or s.used > lim) and 0 or to) end
      if number == 2 then
        local v
        v, till = scale_log(s, to, over)
        work = work + floor((s.count - s.first) / 40)
        call('SET', key, v)
      elseif number == 3 then
        scale_sums(s, to, over)
        work = work + floor(#s.counts / 16)
        till = s.numbers[#s.numbers] * extra + window
        algorithm.write(s, till - now + SLACK)
      elseif number > 5 then
        local missing = s.full - now
        if s.part > 0 then missing = missing + 1 end
        missing = up(up(missing, lim, extra, 31622400000), burst, to, 31622400000)
        missing = min(missing, up(burst, window, to, 31622400000)) -- all of it is missing
        s.full, s.part, s.limit, till = now + missing, 0, to, now + missing
        algorithm.write(s, till - now + SLACK)
      elseif number == 1 then
        scale_counter(s, now, to, over)
        till = algorithm.ends(s)
        local v = s.cur > 0 and counter_encode(s.index, s.cur, s.prev, extra) or encode('<BI5I4I4', VERSION + 1, s.index, 0, s.prev)
        call('SET', key, v, 'PX', till - now + SLACK)
        leave_group(s)
      else
        s.used, till = scaled(s.used, s, to, over, 1000000000000000), s.ends
        algorithm.write(s, till - now + SLACK)
      end
      if virtual then
        call('PEXPIRE', key, VIRTUAL_LIFE)
      elseif number == 2 then
        call('PEXPIRE', key, till - now + SLACK)
      end
    end
  end
  done = done .. (name or '')
end

-- A run that fails in its middle, such as at a key that is on the other server of a slot that is
-- being moved, notes what it has changed, because it is repeated. The counter at which it fails is
-- as it was: what may be on the other server is used before its value is written.
local complete, failure = pcall(function()
  for i = 1, (#ARGV[1] - 14) / 40 do change(i) end
end)
if follows or not complete then
  call('SET', KEYS[1], done, 'PX', MARK_LIFE)
else
  call('SET', KEYS[2], string.format('%.0f', change_number), 'PX', MARK_LIFE)
  call('SET', KEYS[1], '1', 'PX', DONE_MARK_LIFE)
end
if not complete then error(failure, 0) end
return work
