-- Decides one call on counters of any algorithm, with penalties: reads all counters, decides all,
-- and only then writes. Calls whose counters are all compact and have one cost take
-- evaluate_many.lua instead.
--
-- KEYS     for each counter its key, followed by the key of its penalty mark if its rule has a
--          penalty, or by the two keys of credits.lua if its subject has credits. The one key that
--          is not named here is that of a group (group.lua).
-- ARGV[1]  the instant in milliseconds 6 bytes (0: this server's clock), dry run 1; then for each
--          counter algorithm 1 (the numbers are those of limit.Algorithm), flags 1 (1 shadow, 2
--          overage, 4 credits), cost 7, limit 7 (with overage, the greatest one), window 5, extra 5
--          (burst, length of a sub-bucket or base of a counter), penalty 4, bounds 1 (which of
--          ARGV[2], counted from 1; 0 for all but calendar windows), id 9 (group.lua; zeros: none),
--          and with credits the grants of credits.lua; all packed little-endian, like everything
--          below
-- ARGV[2]  for each calendar window two windows, one after the other: the start of the first 6, its
--          end 6, the end of the second 6; then, the last counter first, for each counter with
--          overage the limit beyond which its units are excess 7
-- reply    one string: the instant of the decision 6, allowed 1 (2: the instant is in neither
--          window of a calendar counter; nothing was changed, and nothing follows); then for each
--          counter flags 1 (1 allows, 2 cost exceeds the quota, 4 penalty runs, 8 an invalid value
--          was overwritten, 16 a grant is not open), remaining 7, wait 6 (0 if it allows or never
--          will), instant at which the full quota is available 6, instant at which one more unit
--          is available 6, delay 5, and with credits those that this call has spent 7 and those
--          that are left 7
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

local counters, allowed, k, excesses, i, at = {}, true, 0, 0, 0, 8
while at <= #ARGV[1] do
  i = i + 1
  -- All fields at once: a growing table is copied at each power of two.
  local s = {
    key = 0, number = 0, algorithm = 0, cost = 0, limit = 0, window = 0, extra = 0, penalty = 0, id = '', quota = 0,
    used = 0, remaining = 0, mark = 0, admits = false, exceeds = false, charged = false, index = 0, cur = 0, prev = 0,
    takes = 0,
  }
  local shadow, bounds
  s.number, shadow, s.cost, s.limit, s.window, s.extra, s.penalty, bounds, s.id, at =
    decode('<BBI7I7I5I5I4Bc9', ARGV[1], at)
  if shadow > 3 then
    shadow = shadow - 4
    s.credits = true
  end
  if shadow > 1 then
    shadow = shadow - 2
    excesses = excesses + 1
    s.excess = (decode('<I7', ARGV[2], #ARGV[2] - 7 * excesses + 1)) -- the units beyond it
  end
  local cost = s.cost
  k = k + 1
  s.key = KEYS[k]
  s.algorithm = algorithms[s.number]
  if bounds > 0 then s.bounds = { decode('<I6I6I6', ARGV[2], 18 * bounds - 17) } end
  s.algorithm.read(s, now)
  if s.stale then return encode('<I6B', now, 2) end
  s.quota = s.number > 5 and s.extra or s.limit
  s.remaining = max(0, s.quota - s.used)
  if s.penalty > 0 then
    k = k + 1
    s.mark_key = KEYS[k]
    s.mark = read_mark(s)
  end
  s.takes = cost -- of the window; credits are the rest
  if s.credits then
    s.spent_key, s.outbox = KEYS[k + 1], KEYS[k + 2]
    k = k + 2
    at = read_credits(s, at, now)
    cover_by_credits(s)
  end
  s.admits = cost == 0 or s.takes <= s.remaining and s.mark == 0
  s.exceeds = cost > s.quota
  if s.credits and not s.admits then
    s.retry = credits_retry(s, when, now)
    s.exceeds = not s.retry
  end
  if not s.admits then
    if shadow == 0 then allowed = false end
    if s.penalty > 0 and not s.exceeds and (s.mark == 0 or s.cut) then
      if s.mark == 0 then s.mark = now + s.penalty end
      s.marks = true
    end
  end
  counters[i] = s
end

local reply = encode('<I6B', now, allowed and 1 or 0)
for i = 1, #counters do
  local s = counters[i]
  local algorithm, mark, cost = s.algorithm, s.mark, s.takes
  local charged = allowed and s.admits and cost > 0
  local flags, wait, delay = 0, 0, 0
  if allowed and s.admits and algorithm.delay then delay = algorithm.delay(s, now) end
  if charged then
    s.used = s.used + cost
    algorithm.charge(s, cost, now)
    s.remaining = max(0, s.quota - s.used)
  end
  local whole = when(s, 0)
  local more = s.used > 0 and when(s, min(s.used, s.excess or s.quota) - 1) or now
  if dry == 0 then
    if s.foreign and (charged or s.marks) then flags = 8 end
    if charged then
      s.charged = life(algorithm.ends and algorithm.ends(s) or whole)
    elseif algorithm.heal and (s.cost > 0 or s.follows) then
      s.heals = life(whole)
    end
  end
  if s.admits then
    flags = flags + 1
  elseif s.exceeds then
    flags = flags + 2
  elseif s.credits then
    wait = s.retry - now
  else
    wait = max(when(s, s.quota - cost), mark) - now
  end
  if mark > 0 then
    flags = flags + 4
    s.remaining = 0
    whole, more = max(whole, mark), max(when(s, s.quota - 1), mark) -- more than the 0 shown
  end
  if s.credits then
    if not (allowed and s.admits) then s.spends = 0 end
    if s.unopened > 0 then flags = flags + 16 end
    reply = reply .. encode('<BI7I6I6I6I5I7I7', flags, s.remaining, wait, whole, more, delay, s.spends, s.balance - s.spends)
  else
    reply = reply .. encode('<BI7I6I6I6I5', flags, s.remaining, wait, whole, more, delay)
  end
end

for i = 1, #counters do
  local s = counters[i]
  if s.charged then
    s.algorithm.write(s, s.charged)
  elseif s.heals then
    s.algorithm.heal(s, s.heals)
  end
  if s.credits and s.spends > 0 and dry == 0 then spend_credits(s, now, virtual) end
  if s.marks and dry == 0 then
    call('SET', s.mark_key, encode('<BI6', VERSION, s.mark), 'PX', life(s.mark))
  end
end
return reply
