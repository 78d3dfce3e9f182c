-- Decides many calls in one run, in order. Every counter is compact: a sliding window counter, a
-- fixed window, or a bucket without a penalty. The decisions are those of evaluate_one.lua. To keep
-- Redis free, this script replies with the states that it found, and the caller computes the
-- verdicts with the twins of the algorithms in Go (limit, verdicts.go).
--
-- The number after a field is its length in bytes. All numbers are packed little-endian.
--
-- KEYS     for each call, the keys of its entries: counters under their own keys, and groups
-- ARGV[1]  for each rule: algorithm 1 (the numbers of limit.Algorithm), shadow 1, limit 7,
--          window 5, extra 5 (burst of a bucket, base of a sliding window counter), bounds 1
--          (index in ARGV[4], from 1; 0 if the window is not a calendar's), id 9 (zeros: the rule
--          is never in a group)
-- ARGV[2]  for each call: flags 1 (bit 0: cost and time follow, bit 1: dry run), number of
--          entries 1, number of equal requests 1; for each entry its rule 1 (from 1), or 0 and its
--          group 1; then, if flagged, the cost 7 (default 1) and the time in milliseconds 6
--          (default and 0: the clock of this server)
-- ARGV[3]  for each group: number of rules 1, signature 8, the rules 1 each
-- ARGV[4]  for each rule with a calendar window, two adjacent windows: start of the first 6, its
--          end 6, end of the second 6
-- reply    one string: time by this server's clock 6 (0: it was not needed), number of foreign
--          values that were overwritten 4; for each call the number of allowed requests 1 (255:
--          the time is in neither window of a calendar rule, and nothing changed); for each entry
--          the state before the call, 17 bytes a counter. A group has units 7 before the states,
--          which the caller adds to the count of each counter. In the form of this script for a
--          node of a Cluster (node.lua), 254 with no states is a call that was not decided.
--          sliding window counter: window number 6, count 7, count of the window before 4
--          fixed window: end 6, count 7, length in seconds 4 (0 if not a calendar's); zeros if no
--          window is open
--          bucket: time at which it is full 6, fraction of a millisecond 7, zeros 4
--
-- A call for k equal requests is k requests for the same counters, with the same cost and time. As
-- many as fit are allowed, and the rest are denied, so the script adds them up.
--
-- Example: a fixed window of 10 a minute holds a count of 8. One call is for 3 requests of cost 1.
--   KEYS     { "w{..}key" }
--   ARGV[1]  one rule: 4 (fixed_window), 0, 10, 60000, 0, 0, nine zeros
--   ARGV[2]  one call: flags 0, 1 entry, 3 requests; rule 1
--   ARGV[3]  "": no groups
--   reply    clock, 0 overwritten; 2 allowed; end of the window, count 8, 0
-- The count is now 10. The caller allows the first two requests and denies the third.

local rules, calls = {}, ARGV[2]
local STALE = char(255)

-- Returns as text what units add to a stored number. The last text is kept, since making one is
-- expensive and most calls have the same cost.
local function step(rule, units)
  if rule.units ~= units then
    rule.units, rule.step = units, string.format('%.0f', units * rule[5])
  end
  return rule.step
end

-- Returns rule i of ARGV[1], decoded once.
local function rule_at(i)
  local rule = rules[i]
  if not rule then
    rule = { decode('<BBI7I5I5Bc9', ARGV[1], 29 * i - 28) }
    rule.name = sub(rule[7], 1, 6)
    if rule[6] > 0 then
      rule.starts, rule.ends, rule.next = decode('<I6I6I6', ARGV[4], 18 * rule[6] - 17)
    end
    rules[i] = rule
  end
  return rule
end

-- For each group: the first bytes of its value, the minimum size of a value, the number of rules,
-- and their position in ARGV[3].
local groups, at, last = {}, 1, #ARGV[3]
while at <= last do
  local count = byte(ARGV[3], at)
  groups[#groups + 1] = { char(GROUP, count) .. sub(ARGV[3], at + 1, at + 8), HEAD_SIZE + MEMBER_SIZE * count, count, at + 8 }
  at = at + 9 + count
end

-- Returns floor(a*b / c), without muldiv if the product is small enough. The twin is MulDiv in
-- muldiv.go.
local function share(a, b, c)
  local product = a * b
  if product < 4503599627370496 then return floor(product / c) end
  return (muldiv(a, b, c, 0))
end

-- Returns the state of a sliding window counter at t, and the units in use; nil if the stored time
-- is too far in the future. The twins are slidingWindowCounter.at and used in
-- sliding_window_counter.go.
local function counter_at(window, t, a, b, c)
  if a * window - t >= HORIZON or b > MOST or c > MOST then return nil end
  local index = floor(t / window)
  if a > index then return a, b, c, b + c end -- the clock stepped back
  if a < index then
    if a == index - 1 then c = b else c = 0 end
    b = 0
  end
  if c > 0 then return index, b, c, b + share(c, window - (t - index * window), window) end
  return index, b, 0, b
end

-- Returns the same for a fixed window, and whether its end differs from the stored one. The twin is
-- fixedWindow.openSpan in fixed_window.go.
local function fixed_at(rule, t, a, b, c)
  if a - t >= HORIZON or b > 1000000000000000 then return nil end
  if t >= a then return 0, 0, 0, 0, false end
  if rule.ends and t >= a - 1000 * c then
    local finish, seconds = calendar_window(t, rule.starts, rule.ends, rule.next)
    if finish ~= a then return finish, b, seconds, b, true end
  end
  return a, b, c, b, false
end

-- Returns the end of the fixed window that opens at t, and its length in seconds, 0 if it is not a
-- calendar's. The twins are the methods Charge in fixed_window.go.
local function first_end(rule, t)
  if rule[1] == 5 then return t + rule[4], 0 end
  if rule.ends then return calendar_window(t, rule.starts, rule.ends, rule.next) end
  return t - t % rule[4] + rule[4], 0
end

-- Stores a value that has an effect until ends.
local function store(key, v, ends, t, virtual)
  local ttl = ends - t + SLACK
  if virtual then ttl = max(ttl, VIRTUAL_LIFE) end
  call('SET', key, v, 'PX', ttl)
  written[key] = v
end

-- Reads the members of a group. Returns a table: a, b and c are their states at t; kept, the stored
-- states of members that may not be charged, with the time until which they have an effect;
-- remaining, their units left; least, the fewest units left of an enforcing rule; and moved, the
-- keys of members that are not in the group yet.
local function group_open(group, key, v, t)
  local count, from = group[3], group[4]
  local g = v and group_decode(v, spents[key]) or nil
  local s = {
    group = group, g = g, foreign = v and not g, calendar = false, follows = false, stale = false, rules = {}, at = {}, kept = {}, moved = {},
    a = {}, b = {}, c = {}, remaining = {}, least = false,
  }
  local absent, owns = {}, {}
  local prefix, low, high -- as in key_beside, but read once
  for i = 1, count do
    local rule = rule_at(byte(ARGV[3], from + i))
    s.rules[i] = rule
    if rule.ends then s.calendar = true end
    local place = g and g.place[rule.name]
    if place and g.b[place] > 0 then
      s.at[i] = place
    else
      s.at[i] = false
      absent[#absent + 1] = i
      if not low then
        prefix = sub(key, 1, -10)
        low, high = decode('<I5I4', key, #key - 8)
      end
      if not rule.low then rule.low, rule.high = decode('<I5I4', rule[7]) end
      owns[#owns + 1] = prefix .. encode('<I5I4', (low + rule.low) % 1099511627776, (high + rule.high) % 4294967296)
    end
  end
  local own = {}
  if #owns > 0 then
    local read = call('MGET', unpack(owns)) --@slot
    --@node local read = read_all(owns)
    --@node if not read then return nil end
    for j = 1, #owns do
      local w = written[owns[j]]
      if w == nil then w = read[j] end
      if w then own[absent[j]], s.moved[absent[j]] = w, owns[j] end
    end
  end
  for i = 1, count do
    local rule, place = s.rules[i], s.at[i]
    local number = rule[1]
    local a, b, c, till = 0, 0, 0, 0
    if place then
      a, b, c, till = g.a[place], g.b[place], g.c[place], g.tills[place]
    elseif own[i] then
      local x, y, z
      if number == 1 then
        x, y, z = counter_decode(own[i], rule[5])
      else
        x, y, z = fixed_decode(own[i], number)
      end
      if x then
        if number == 1 and y == 0 then x, y, z = x - 1, z, 0 end -- 0 is none here
        a, b, c, till = x, y, z, number == 1 and (x + 2) * rule[4] or x
      else
        s.foreign = true
      end
    end
    local p, q, r, used
    local follows = false
    if number == 1 then
      p, q, r, used = counter_at(rule[4], t, a, b, c)
    else
      p, q, r, used, follows = fixed_at(rule, t, a, b, c)
      s.stale = s.stale or rule.ends and (t < rule.starts or t >= rule.next)
    end
    if not p then
      s.foreign = true
      a, b, c, till = 0, 0, 0, 0
      if number == 1 then p, q, r, used = counter_at(rule[4], t, 0, 0, 0) else p, q, r, used = 0, 0, 0, 0 end
    end
    if follows then
      s.follows, a, b, c, till = true, p, q, r, p
    end
    if rule[2] == 1 or s.calendar then s.kept[i] = { a, b, c, till } end -- may not be charged
    s.a[i], s.b[i], s.c[i] = p, q, r
    local left = rule[3] - used
    s.remaining[i] = left
    if rule[2] == 0 and (not s.least or left < s.least) then s.least = left end
  end
  return s
end

local function group_reply(s)
  local list, n = {}, 0
  for i = 1, s.group[3] do
    list[n + 1], list[n + 2], list[n + 3] = s.a[i], s.b[i], s.c[i]
    n = n + 3
  end
  return encode('<I7' .. rep('I6I7I4', s.group[3]), 0, unpack(list))
end

-- Charges the members that group_open returned, and stores them in one value. If allowed is 0, it
-- stores them unchanged.
local function group_charge(s, key, t, virtual, cost, allowed)
  local count = s.group[3]
  local list, ends, n = {}, {}, 0
  local most, till, longest = 9007199254740992, t + HORIZON, 0
  for i = 1, count do
    local rule = s.rules[i]
    local units = cost * allowed
    if rule[2] == 1 then units = cost * min(allowed, max(0, floor(s.remaining[i] / cost))) end
    local a, b, c, matters
    if units > 0 then
      a, b, c = s.a[i], s.b[i] + units, s.c[i]
      if rule[1] == 1 then
        matters = (a + 2) * rule[4]
        till = min(till, matters - rule[4])
      else
        if a == 0 then a, c = first_end(rule, t) end
        matters = a
        till = min(till, a)
        -- The clock stepped back behind this window, which may be of an earlier schedule.
        if rule.ends and t < a - 1000 * c then till = min(till, a - 1000 * c) end
      end
      most = min(most, s.remaining[i] - units)
    else -- not all members are charged the same
      a, b, c, matters = unpack(s.kept[i])
      most, till = 0, t
    end
    list[n + 1], list[n + 2], list[n + 3] = a, b, c
    ends[2 * i - 1], ends[2 * i] = rule.name, matters
    n = n + 3
    longest = max(longest, matters)
  end
  for i = 1, 2 * count do list[n + i] = ends[i] end
  local others, g = 0, s.g
  if g then
    local mine = {}
    for i = 1, count do mine[ends[2 * i - 1]] = true end
    others = add_others(list, g, function(j)
      if mine[g.names[j]] or g.tills[j] <= t and not virtual then return false end
      longest = max(longest, g.tills[j])
      return true
    end)
  end
  local v = encode('<c10I6I6I7I7' .. rep('I6I7I4', count) .. rep('c6I6', count) .. rep('c6I6I6I7I4', others),
    s.group[1], t, till, 0, most, unpack(list))
  store(key, v, longest, t, virtual)
  spents[key] = nil
  for _, own in pairs(s.moved) do
    call('UNLINK', own)
    written[own] = false
  end
end

local reply, n, k, clock, repaired = { '' }, 1, 0, 0, 0
local values = {} -- of all keys, by one command, since most of the cost is per command
if #KEYS > 0 then values = call('MGET', unpack(KEYS)) end --@slot
--@node read_keys(values)
-- For each entry of the current call: the rule or group; a, b and c, the state of a counter (for a
-- group, a is the first result of read_group); the units left; whether the value is foreign;
-- whether the counter is in a group; and whether the end of its window differs from the stored one.
local entries, a, b, c, remaining, foreigns, homes, follows = {}, {}, {}, {}, {}, {}, {}, {}

-- Reads value v of a fixed window, false if there is none. Returns the state at t, the units in
-- use, whether the value is foreign, and whether the end differs from the stored one.
local function read_fixed(rule, v, t)
  local x, y, z, used, moved
  if v then
    local finish, counted, seconds = fixed_decode(v, rule[1])
    if finish then x, y, z, used, moved = fixed_at(rule, t, finish, counted, seconds) end
  end
  if x then return x, y, z, used, false, moved end
  return 0, 0, 0, 0, v and true, false
end

-- Returns the same for a bucket, without the last. The twins are bucket.under and Remaining in
-- bucket.go.
local function read_bucket(rule, v, t)
  local x, y, foreign = t, 0, false
  if v then
    local known = #v == 15 and byte(v) == VERSION + rule[1]
    if known then
      local _, full, part, limit = decode('<BI6I4I4', v)
      known = full - t < HORIZON and part < limit and limit <= MOST
      if known then
        if limit ~= rule[3] and part > 0 then full, part = full + 1, 0 end
        if full >= t then x, y = full, part end
      end
    end
    foreign = not known
  end
  local used, rest = muldiv(rule[3], x - t, rule[4], y)
  if rest > 0 then used = used + 1 end
  return x, y, 0, used, foreign
end

-- Reads entry i, a counter with its own key. Returns its state at t and its units left.
local function read_alone(i, rule, key, v, t)
  local number, quota, home = rule[1], rule[3], false
  if not v and number < 6 and rule[7] ~= NO_ID then
    v = from_group(key, rule[7], number, rule[5])
    home = v ~= nil
  end
  local x, y, z, used, foreign, moved
  if number == 1 then
    if v then
      local index, cur, prev = counter_decode(v, rule[5])
      if index then x, y, z, used = counter_at(rule[4], t, index, cur, prev) end
      foreign = not x
    end
    if not x then x, y, z, used = floor(t / rule[4]), 0, 0, 0 end
  elseif number > 5 then
    quota = rule[5]
    x, y, z, used, foreign = read_bucket(rule, v, t)
  else
    x, y, z, used, foreign, moved = read_fixed(rule, v, t)
  end
  local left = quota - used
  remaining[i], foreigns[i], homes[i], follows[i] = left, foreign, home, moved
  return x, y, z, left
end

-- Reads entry i, a group. If its value shows that the units fit and that no window has ended,
-- returns the units spent since the states in the value, and these states. Otherwise returns the
-- result of group_open.
local function read_group(i, group, key, v, t, units)
  follows[i] = false
  if v and #v >= group[2] then
    local begins, since, till, spent, most = decode('<c10I6I6I7I7', v)
    if begins == group[1] and since <= t and t < till and till - t < HORIZON then
      spent = spents[key] or spent
      if units <= most - spent then return spent, sub(v, HEAD_SIZE + 1, HEAD_SIZE + STATE_SIZE * group[3]) end
    end
  end
  local s = group_open(group, key, v, t)
  --@node if not s then return ELSEWHERE end
  follows[i] = s.follows
  return s
end

-- Charges units to entry i, a counter with its own key. The twins are the methods Charge of the
-- algorithms in Go.
local function charge_alone(i, rule, key, t, virtual, units)
  local number, v, ends = rule[1]
  if number == 1 then
    local cur = b[i] + units
    v = counter_encode(a[i], cur, c[i], rule[5])
    ends = (a[i] + 2) * rule[4]
    -- A number of the same window is incremented. That fails if it is not in its shortest form:
    -- then it is overwritten.
    if cur > units and not foreigns[i] and not homes[i] and type(v) == 'number' and
      type(try('INCRBY', key, step(rule, units))) == 'number' then
      written[key] = v
      return
    end
  elseif number > 5 then
    local longer, rest = muldiv(units, rule[4], rule[3], b[i])
    ends = a[i] + longer
    v = encode('<BI6I4I4', VERSION + number, ends, rest, rule[3])
    if rest > 0 then ends = ends + 1 end
  else
    local seconds = c[i]
    ends = a[i]
    if ends == 0 then ends, seconds = first_end(rule, t) end
    v = fixed_encode(number, ends, b[i] + units, seconds)
  end
  store(key, v, ends, t, virtual)
  if foreigns[i] then repaired = repaired + 1 end
end

-- Stores the entries that were not charged and whose end differs from the stored one, since the
-- reply has the new end.
local function follow_windows(from, count, t, virtual)
  for i = 1, count do
    local rule, key = entries[i], KEYS[from + i]
    if follows[i] and not rule[5] then
      group_charge(a[i], key, t, virtual, 1, 0)
    elseif follows[i] then
      store(key, fixed_encode(rule[1], a[i], b[i], c[i]), a[i], t, virtual)
      if homes[i] then group_leave(key_beside(key, rule[7], -1), rule[7]) end
    end
  end
end

-- The two loops over the entries are not functions: this is the most expensive part of a run.
local pos, size = 1, #calls
while pos <= size do
  -- Decode the call.
  local flags, count, times = byte(calls, pos, pos + 2)
  pos = pos + 3
  for i = 1, count do
    local entry = byte(calls, pos)
    pos = pos + 1
    if entry == 0 then
      entries[i] = groups[byte(calls, pos)]
      pos = pos + 1
    else
      entries[i] = rules[entry] or rule_at(entry)
    end
  end
  local cost, t = 1, 0
  if flags % 2 == 1 then cost, t, pos = decode('<I7I6', calls, pos) end
  local virtual = t > 0
  if not virtual then
    if clock == 0 then
      local time = call('TIME')
      clock = time[1] * 1000 + floor(time[2] / 1000)
    end
    t = clock
  end

  -- Read its entries, reply with their states, and compute how many requests are allowed.
  local from, head = k, n + 1
  local allowed, stale, follow = times, false, false
  --@node local away = false
  n = head
  for i = 1, count do
    local entry, key = entries[i], KEYS[from + i]
    local v, left = written[key]
    if v == nil then v = values[from + i] end -- false if there is no value, or one of another type
    --@node if v == false and written[key] == false then v = value_of(key) end
    --@node if v == ELSEWHERE then away = true break end
    n = n + 1
    if entry[5] then
      local x, y, z
      x, y, z, left = read_alone(i, entry, key, v, t)
      reply[n] = encode('<I6I7I4', x, y, z)
      a[i], b[i], c[i] = x, y, z
      if entry[2] == 1 then left = nil end
      if entry.ends and (t < entry.starts or t >= entry.next) then stale = true end
    else
      local s, states = read_group(i, entry, key, v, t, cost * times)
      --@node if s == ELSEWHERE then away = true break end
      a[i] = s
      if states then
        reply[n], reply[n + 1] = encode('<I7', s), states
        n = n + 1
      else
        reply[n], left, stale = group_reply(s), s.least, stale or s.stale
      end
    end
    follow = follow or follows[i]
    if left and cost > 0 then
      if cost > 1 then left = floor(left / cost) end
      if left < allowed then allowed = max(0, left) end
    end
  end
  k = from + count
  --@node if away then
  --@node   for j = head + 1, n do reply[j] = nil end
  --@node   n, allowed, stale, follow = head, 0, false, false
  --@node end
  if stale then allowed, follow = 0, false end
  reply[head] = stale and STALE or char(allowed)
  --@node if away then reply[head] = NOT_SERVED end

  -- Charge them; a rule in shadow, for as many requests as fit.
  if allowed > 0 and cost > 0 and flags < 2 then
    local leaves = false
    for i = 1, count do
      local rule, key, units, s = entries[i], KEYS[from + i], cost * allowed, a[i]
      if rule[5] then
        if rule[2] == 1 then units = cost * min(allowed, max(0, floor(remaining[i] / cost))) end
        if units > 0 then
          charge_alone(i, rule, key, t, virtual, units)
          follows[i], leaves = false, leaves or homes[i]
        end
      elseif type(s) == 'number' then -- a group whose units fit
        call('SETRANGE', key, SPENT_TEXT, encode('<I7', s + units))
        spents[key] = s + units
      else
        group_charge(s, key, t, virtual, cost, allowed)
        follows[i] = false
        if s.foreign then repaired = repaired + 1 end
      end
    end
    -- Remove counters from the group in which they were found, now that the group is written.
    for i = 1, leaves and count or 0 do
      local rule, key = entries[i], KEYS[from + i]
      if rule[5] and homes[i] and written[key] then group_leave(key_beside(key, rule[7], -1), rule[7]) end
    end
  end
  if follow and flags < 2 then follow_windows(from, count, t, virtual) end
end
reply[1] = encode('<I6I4', clock, repaired)
return table.concat(reply)
