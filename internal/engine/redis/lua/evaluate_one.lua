-- Decides one call on counters of any algorithm, with penalties: reads all counters, decides all,
-- and only then writes. Calls whose counters are all compact and have one cost take
-- evaluate_many.lua instead.
--
-- KEYS     for each counter its key, followed by the key of its penalty mark if its rule has a
--          penalty, or by the two keys of credits.lua if its subject has credits and no counter
--          before it has the same ones. The one key that is not named here is that of a group
--          (group.lua).
-- ARGV[1]  the instant in milliseconds 6 bytes (0: this server's clock), dry run 1; then for each
--          counter algorithm 1 (the numbers are those of limit.Algorithm), flags 1 (1 shadow, 2
--          overage, 4 credits, 8 those of an earlier counter), cost 7, limit 7 (with overage, the
--          greatest one), window 5, extra 5 (burst, length of a sub-bucket or base of a counter),
--          penalty 4, bounds 1 (which of ARGV[2], counted from 1; 0 for all but calendar windows),
--          id 9 (group.lua; zeros: none), and with credits the grants of credits.lua, or if they
--          are those of an earlier counter its number, counted from 1, 2; all packed
--          little-endian, like everything below
-- ARGV[2]  for each calendar window two windows, one after the other: the start of the first 6, its
--          end 6, the end of the second 6; then, the last counter first, for each counter with
--          overage the limit beyond which its units are excess 7
-- reply    one string: the instant of the decision 6, allowed 1 (2: the instant is in neither
--          window of a calendar counter; nothing was changed, and nothing follows); then for each
--          counter flags 1 (1 allows, 2 cost exceeds the quota, 4 penalty runs, 8 an invalid value
--          was overwritten, 16 a grant is not open), remaining 7, wait 6 (0 if it allows or never
--          will), instant at which the full quota is available 6, instant at which one more unit
--          is available 6, delay 5, and with credits those that this counter has spent 7 and
--          those that are left after the call 7
--
-- A penalty mark is version 1 byte and the instant of its end 6.
--
-- Example: a token bucket of burst 5, 1 per second, has just become empty; a call costs 2.
--   KEYS     { "w{..}key" }
--   ARGV[1]  0, 0; one counter: 6 (token_bucket), 0, cost 2, 1, 1000, 5, 0, 0, nine zeros
--   reply    now; allowed 0; flags 0, remaining 0, wait 2000, full in 5000 ms, one more in 1000 ms,
--            delay 0
-- Nothing is written.

local now, dry = decode('<I6B', ARGV[1])
local virtual = now > 0
if not virtual then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end

local function life(till)
  local ttl = till - now + SLACK
  if virtual then return max(ttl, VIRTUAL_LIFE) end
  return ttl
end

-- Returns the end of the running penalty, or 0. An end that is later than that of a penalty which
-- began now is reduced to it: the clock stepped back, or the rule's penalty was longer before.
local function read_mark(s)
  local v = fetch(s, 'GET', s.mark_key)
  if not v then return 0 end
  if #v ~= 7 or string.byte(v) ~= VERSION then
    s.foreign = true
    return 0
  end
  local _, till = decode('<BI6', v)
  if till > now + s.penalty then
    s.cut = true
    return now + s.penalty
  end
  if till <= now then return 0 end
  return till
end

local function when(s, m)
  if s.used <= m then return now end
  return s.algorithm.when(s, now, m)
end

-- Decodes the next counter of the call. args has how far the arguments are decoded: the position in
-- ARGV[1], the number of used keys, and the number of limits taken from the end of ARGV[2].
local function decode_counter(args)
  -- All fields at once: a growing table is copied at each power of two.
  local s = {
    key = 0, number = 0, algorithm = 0, cost = 0, limit = 0, window = 0, extra = 0, penalty = 0, id = '', quota = 0,
    used = 0, remaining = 0, mark = 0, allows = false, exceeds = false, charged = false, index = 0, cur = 0, prev = 0,
    takes = 0, shadow = false,
  }
  local flags, bounds
  s.number, flags, s.cost, s.limit, s.window, s.extra, s.penalty, bounds, s.id, args.at =
    decode('<BBI7I7I5I5I4Bc9', ARGV[1], args.at)
  s.shadow, s.credits, s.shares = flags % 2 == 1, flags > 3, flags > 7
  if flags % 4 > 1 then
    args.excesses = args.excesses + 1
    s.excess = (decode('<I7', ARGV[2], #ARGV[2] - 7 * args.excesses + 1)) -- the units beyond it
  end
  if bounds > 0 then s.bounds = { decode('<I6I6I6', ARGV[2], 18 * bounds - 17) } end
  s.algorithm = algorithms[s.number]
  s.quota = s.number > 5 and s.extra or s.limit
  args.keys = args.keys + 1
  s.key = KEYS[args.keys]
  if s.penalty > 0 then
    args.keys = args.keys + 1
    s.mark_key = KEYS[args.keys]
  end
  return s
end

local counters = {}

-- Reads the state of a counter, its penalty mark and its credits.
local function read_counter(s, args)
  s.algorithm.read(s, now)
  if s.stale then return end
  s.remaining = max(0, s.quota - s.used)
  if s.mark_key then s.mark = read_mark(s) end
  s.takes = s.cost -- of the window; credits are the rest
  if s.credits then
    find_purse(s, args, counters, now)
    cover_by_credits(s)
  end
end

-- Decides whether a counter allows the call, and whether its denial begins a penalty. The twins are
-- Judgement.Admit and admitWithCredits in judge.go.
local function decide(s)
  s.allows = s.cost == 0 or s.takes <= s.remaining and s.mark == 0
  s.exceeds = s.cost > s.quota
  if s.credits then
    if not s.allows then
      s.retry = credits_retry(s, when, now)
      s.exceeds = not s.retry
    end
    note_need(s)
  end
  if s.allows then return end
  if s.penalty > 0 and not s.exceeds and (s.mark == 0 or s.cut) then
    if s.mark == 0 then s.mark = now + s.penalty end
    s.marks = true
  end
end

-- Charges a counter in memory if the call is allowed, and sets for how long write is to store it.
-- Returns whether it charges, how long an allowed call must wait, and when the full quota is
-- available. The twin is Judgement.Charge in judge.go.
local function charge(s, allowed)
  local algorithm, delay = s.algorithm, 0
  if allowed and s.allows and algorithm.delay then delay = algorithm.delay(s, now) end
  local charges = allowed and s.allows and s.takes > 0
  if charges then
    s.used = s.used + s.takes
    algorithm.charge(s, s.takes, now)
    s.remaining = max(0, s.quota - s.used)
  end
  local full = when(s, 0)
  if dry == 0 then
    if charges then
      s.charged = life(algorithm.ends and algorithm.ends(s) or full)
    elseif algorithm.heal and (s.cost > 0 or s.follows) then
      s.heals = life(full)
    end
  end
  return charges, delay, full
end

-- Returns how long to wait before a denied call would be allowed, 0 for never.
local function wait_of(s)
  if s.exceeds then return 0 end
  if s.credits then return s.retry - now end
  return max(when(s, s.quota - s.takes), s.mark) - now
end

-- Charges a counter, in memory only, and returns its part of the reply. The twin is
-- Judgement.Finish in judge.go.
local function conclude(s, allowed)
  local charges, delay, full = charge(s, allowed)
  local more = s.used > 0 and when(s, min(s.used, s.excess or s.quota) - 1) or now
  local flags, wait = 0, 0
  if dry == 0 and s.foreign and (charges or s.marks) then flags = 8 end
  if s.allows then
    flags = flags + 1
  else
    if s.exceeds then flags = flags + 2 end
    wait = wait_of(s)
  end
  if s.mark > 0 then
    flags = flags + 4
    s.remaining = 0
    full, more = max(full, s.mark), max(when(s, s.quota - 1), s.mark) -- more than the 0 shown
  end
  if not s.credits then return encode('<BI7I6I6I6I5', flags, s.remaining, wait, full, more, delay) end
  local spends, left = 0, s.purse.balance
  if allowed then spends, left = s.spends, left - s.purse.needed end
  if s.purse.unopened > 0 then flags = flags + 16 end
  return encode('<BI7I6I6I6I5I7I7', flags, s.remaining, wait, full, more, delay, spends, left)
end

-- Writes what the call has changed of a counter.
local function write(s)
  if s.charged then
    s.algorithm.write(s, s.charged)
  elseif s.heals then
    s.algorithm.heal(s, s.heals)
  end
  if dry == 1 then return end
  if s.marks then call('SET', s.mark_key, encode('<BI6', VERSION, s.mark), 'PX', life(s.mark)) end
end

local allowed, args = true, { at = 8, keys = 0, excesses = 0 }
while args.at <= #ARGV[1] do
  local s = decode_counter(args)
  read_counter(s, args)
  if s.stale then return encode('<I6B', now, 2) end
  decide(s)
  if not s.allows and not s.shadow then allowed = false end
  counters[#counters + 1] = s
end
local reply = encode('<I6B', now, allowed and 1 or 0)
for i = 1, #counters do reply = reply .. conclude(counters[i], allowed) end
for i = 1, #counters do write(counters[i]) end
if args.purses and allowed and dry == 0 then spend_credits(args.purses, now) end
return reply
