-- Decides many calls, one after the other: those whose counters are sliding window counters,
-- fixed windows and buckets without a penalty, which most are. It is what main.lua is, without
-- tables of functions, and its answer is what was stored: who asked works the verdicts out from
-- that, with the algorithms' twins in Go. This server then does no more than must be atomic.
--
-- KEYS     for each call the keys of its counters
-- ARGV[1]  for each rule algorithm 1 (the numbers are those of check.Algorithm), shadow 1, limit
--          7, window 5, extra 5 (burst of a bucket, base of a sliding window counter), calendar
--          unit 1; all packed little-endian
-- ARGV[2]  for each call flags 1 (1 cost and time are given, 2 dry run), how many counters 1, how
--          often it is asked 1; for each counter its rule 1, counted from 1; and if given the cost
--          7 (else 1), the instant in milliseconds 6 (else, and for 0, this server's clock)
-- reply    integers: the instant by this server's clock (0: not asked), how many foreign values
--          were overwritten; then for each call how often it is allowed, and for each counter its
--          state before the call, as it stands at the call's instant: of a sliding window counter
--          the window's number, its count and the one before; of a fixed window its end and count
--          (0, 0: none is open); of a bucket the instant of being whole and its fraction
--
-- A call that is asked k times is k calls of the same counters and cost at one instant. The first
-- of them are allowed, as many as fit, and every one after that is denied, so they are one sum.

local byte = string.byte

local rules, calls = {}, ARGV[2]
for i = 1, #ARGV[1] / 20 do
  rules[i] = { decode('<BBI7I5I5B', ARGV[1], 20 * i - 19) }
end

-- floor(a*b / c), where it can without splitting.
local function share(a, b, c)
  local product = a * b
  if product < 4503599627370496 then return floor(product / c) end
  return (muldiv(a, b, c, 0))
end

local reply, n, k, clock, repaired = { 0, 0 }, 2, 0, 0, 0
local rooms, foreigns = {}, {}
local values = {} -- of all keys, read at once: most of what a single reading costs is around it
if #KEYS > 0 then values = call('MGET', unpack(KEYS)) end
local written = {} -- by this run
local pos, size = 1, #calls
while pos <= size do
  local flags, count, times = byte(calls, pos, pos + 2)
  local first, from, head = pos + 3, k, n + 1
  local cost, t = 1, 0
  pos = first + count
  if flags % 2 == 1 then cost, t, pos = decode('<I7I6', calls, pos) end
  local virtual = t > 0
  if not virtual then
    if clock == 0 then
      local time = call('TIME')
      clock = time[1] * 1000 + floor(time[2] / 1000)
    end
    t = clock
  end

  local allowed = times
  n = head
  for i = 1, count do
    local rule = rules[byte(calls, first + i - 1)]
    local number, quota, window = rule[1], rule[3], rule[4]
    k = k + 1
    local v = written[KEYS[k]] or values[k] -- false of no value, and of another type
    local foreign = false
    local used
    if number == 1 then
      local base = rule[5]
      local index = floor(t / window)
      local cur, prev, elapsed = 0, 0, t - index * window
      if v then
        local i, c, p = counter_decode(v, base)
        if not i or i * window - t >= HORIZON or c > MOST or p > MOST then
          foreign = true
        elseif i == index then
          cur, prev = c, p
        elseif i > index then -- the clock stepped back
          index, elapsed, cur, prev = i, 0, c, p
        elseif i == index - 1 then
          prev = c
        end
      end
      reply[n + 1], reply[n + 2], reply[n + 3] = index, cur, prev
      n = n + 3
      used = cur
      if prev > 0 then used = cur + share(prev, window - elapsed, window) end
    elseif number > 5 then
      quota = rule[5]
      local full, part, level, rest = t, 0, 0, 0
      if v then
        local known = #v == 15 and byte(v) == VERSION + number
        if known then
          local _, f, p, limit = decode('<BI6I4I4', v)
          known = f - t < HORIZON and p < limit and limit <= MOST
          if known then
            if limit ~= rule[3] and p > 0 then f, p = f + 1, 0 end
            if f >= t then full, part = f, p end
          end
        end
        foreign = not known
      end
      reply[n + 1], reply[n + 2] = full, part
      n = n + 2
      level, rest = muldiv(rule[3], full - t, window, part)
      if rest > 0 then level = level + 1 end
      used = level
    else
      local ends, counted = 0, 0
      if v then
        foreign = true
        if #v == 14 and byte(v) == VERSION + number then
          local _, e, c = decode('<BI6I7', v)
          if e - t < HORIZON and c <= 1000000000000000 then
            foreign = false
            if t < e then ends, counted = e, c end
          end
        end
      end
      reply[n + 1], reply[n + 2] = ends, counted
      n = n + 2
      used = counted
    end
    local room = quota - used
    rooms[i], foreigns[i] = room, foreign
    if rule[2] == 0 and cost > 0 then
      if cost > 1 then room = floor(room / cost) end
      if room < allowed then allowed = max(0, room) end
    end
  end
  reply[head] = allowed

  if allowed > 0 and cost > 0 and flags < 2 then
    local at = head
    for i = 1, count do
      local rule = rules[byte(calls, first + i - 1)]
      local number, window, units = rule[1], rule[4], cost * allowed
      if rule[2] == 1 then units = cost * min(allowed, max(0, floor(rooms[i] / cost))) end
      local key, v, whole = KEYS[from + i]
      local added = false
      if units == 0 then -- it is in shadow, and admits nothing
      elseif number == 1 then
        local index, cur = reply[at + 1], reply[at + 2] + units
        v = counter_encode(index, cur, reply[at + 3], rule[5])
        whole = (index + 2) * window
        -- In the same window, what is stored as a number is added to. It may be spelled in another
        -- way, or longer than it must be: then it is stored anew.
        if cur > units and not foreigns[i] and type(v) == 'number' then
          added = type(try('INCRBY', key, units * rule[5])) == 'number'
        end
      elseif number > 5 then
        local longer, rest = muldiv(units, window, rule[3], reply[at + 2])
        whole = reply[at + 1] + longer
        v = encode('<BI6I4I4', VERSION + number, whole, rest, rule[3])
        if rest > 0 then whole = whole + 1 end
      else
        whole = reply[at + 1]
        if whole == 0 then
          if number == 5 then whole = t + window else whole = window_end(t, window, rule[6]) end
        end
        v = encode('<BI6I7', VERSION + number, whole, reply[at + 2] + units)
      end
      if number == 1 then at = at + 3 else at = at + 2 end
      if units > 0 then
        if not added then
          local ttl = whole - t + SLACK
          if virtual then ttl = max(ttl, VIRTUAL_LIFE) end
          call('SET', key, v, 'PX', ttl)
        end
        written[key] = v
        if foreigns[i] then repaired = repaired + 1 end
      end
    end
  end
end
reply[1], reply[2] = clock, repaired
return reply
