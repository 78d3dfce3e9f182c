-- The functions of the three buckets, as prelude.lua describes them. The twin is bucket.go, with
-- under and Remaining for read, when, and Charge.
--
-- In       a counter s: limit, the units refilled per window; extra, the burst
-- Out      s.full, the instant at which the bucket is full, and s.part, a fraction of a millisecond
--          with the denominator s.limit; s.used
--
-- Example: limit 10 per 1000 ms, so a unit returns in 100 ms. The bucket is full in 250 ms. 2.5
-- units are missing, and s.used is 3. A charge of 2 makes it full in 450 ms.
--
-- Value: version and algorithm 1 byte, the
-- instant at which the bucket is full in whole milliseconds 6, its fraction 4, the limit that is
-- the denominator of the fraction 4.

local function bucket_read(s, t)
  local full, part = t, 0
  local v = fetch(s, 'GET', s.key)
  if v then
    local known = #v == 15 and string.byte(v) == VERSION + s.number
    if known then
      local _, f, p, limit = decode('<BI6I4I4', v)
      known = f - t < HORIZON and p < limit and limit <= MOST
      if known then
        if limit ~= s.limit and p > 0 then f, p = f + 1, 0 end
        if f >= t then full, part = f, p end
      end
    end
    if not known then s.foreign = true end
  end
  s.full, s.part = full, part
  local level, rest = muldiv(s.limit, full - t, s.window, part)
  if rest > 0 then level = level + 1 end
  s.used = level
end

-- ceil(full - m*W/L): the instant at which m units are missing.
local function bucket_when(s, t, m)
  local early, rest = muldiv(m, s.window, s.limit, 0)
  local at = s.full - early
  if rest < s.part then at = at + 1 end
  return max(t, at)
end

local function bucket_charge(s, cost)
  local longer, rest = muldiv(cost, s.window, s.limit, s.part)
  s.full, s.part = s.full + longer, rest
end

local function bucket_write(s, ttl)
  call('SET', s.key, encode('<BI6I4I4', VERSION + s.number, s.full, s.part, s.limit), 'PX', ttl)
end

local bucket = { read = bucket_read, when = bucket_when, charge = bucket_charge, write = bucket_write }
