-- Returns units that were charged and not used. Each counter is treated separately.
--
-- KEYS     the counters
-- ARGV[1]  for each counter algorithm 1 (the numbers are those of limit.Algorithm), limit 7,
--          window 5, extra 5 (base of a sliding window counter), ground 6, until 6, charged 6 (the
--          instant in ms; 0: unknown), units 7, id 9 (group.lua; zeros: none); all packed
--          little-endian
-- ARGV[2]  the time in ms; 0: that of the server
-- ARGV[3]  empty; while the slot of the counters is moved to another server of a Cluster: "?" on
--          that server, or "=" and what the key of the changes of the only counter has, wherever
--          it is (amend.lua)
-- reply    the number of counters to which units were returned; -1: none, because other servers
--          must be asked first
--
-- Example: 10 units of a fixed window were charged, and 4 were not used. Its count is 25.
--   KEYS     { "w{..}key" }
--   ARGV[1]  one counter: 4 (fixed_window), limit 100, window 60000, 0, ground: the end of the
--            window, until 0, charged 0, units 4, nine zeros
--   ARGV[2]  0
--   ARGV[3]  empty
--   reply    1
-- The count is now 21. In the next window, the same call replies 0 and changes nothing.
--
-- The ground names the state that was charged (engine.RefundPart). A counter stays unchanged if it
-- is in another state, has another form, or holds fewer units than would be returned. A bucket may
-- be in another state up to the instant until, if it stays used. Expiries do not change: the full
-- quota is available no later than before.
--
-- If a counter was scaled after the instant charged, its units are scaled too (amend.lua). These
-- changes have a key of their own, in the same slot, which most counters do not have. While the
-- slot is moved away, reading a missing key is an error. Where the slot is moved to, a missing key
-- may still be on the other server. So the caller reads the key from both, and passes what it
-- found. That is complete, because amend.lua does not run while the slot is moved.

local now, elsewhere = tonumber(ARGV[2]), ARGV[3]
if elsewhere == '?' then return -1 end
local known = elsewhere ~= ''

local function time()
  if now == 0 then
    local t = call('TIME')
    now = t[1] * 1000 + floor(t[2] / 1000)
  end
  return now
end

-- Returns the counter's new value, '' if nothing is left of it, or nil if it does not change. The
-- twins are the methods Refund of the algorithms in Go.
local function less(v, number, limit, window, base, ground, latest, units)
  if number == 1 then
    local i, c, p = counter_decode(v, base)
    if i == ground and c >= units then
      c = c - units
    elseif i == ground + 1 and p >= units then
      p = p - units
    else
      return nil
    end
    if c == 0 then -- which a number cannot say
      return p > 0 and encode('<BI5I4I4', VERSION + 1, i, c, p) or ''
    end
    return counter_encode(i, c, p, base)
  end
  if number == 3 then
    local size = (#v - 7) / 5
    if size < 1 or size > 120 or size ~= floor(size) or byte(v) ~= VERSION + 3 then return nil end
    local _, newest = decode('<BI6', v)
    local rest, found = {}, false
    for at = 8, #v, 5 do
      local before, count = decode('<BI4', v, at)
      if newest - before == ground then
        if count < units then return nil end
        found, count = true, count - units
      end
      if count > 0 then rest[#rest + 1] = encode('<BI4', before, count) end
    end
    if not found then return nil end
    if #rest == 0 then return '' end
    -- If the newest one is deleted, the others keep their numbers, which are relative to it.
    return string.sub(v, 1, 7) .. table.concat(rest)
  end
  if number > 5 then
    if #v ~= 15 or byte(v) ~= VERSION + number then return nil end
    local _, full, part, of = decode('<BI6I4I4', v)
    local full_at = full -- in whole milliseconds
    if part > 0 then full_at = full + 1 end
    local same = full_at == ground
    if of ~= limit or not same and time() > latest then return nil end
    local sooner, more = muldiv(units, window, limit, 0)
    full, part = full - sooner, part - more
    if part < 0 then full, part = full - 1, part + limit end
    if full < 0 or not same and full <= time() then return nil end
    return encode('<BI6I4I4', VERSION + number, full, part, limit)
  end
  local ends, count, seconds = fixed_decode(v, number)
  if ends ~= ground or count < units then return nil end
  if count == units then return '' end
  return fixed_encode(number, ends, count - units, seconds)
end

-- floor(a*to/of), or 0 if it is more than any count. The twin is Share.down.
local function down(a, to, of)
  local quotient = ratio(a, to, of, 1000000000000000)
  return quotient > 1000000000000000 and 0 or quotient
end

-- The changes of each counter, false for none. All are read before anything is written.
local changes = {}
for k = 1, #KEYS do
  local v = try('GET', KEYS[k] .. ':s')
  local refused = type(v) == 'table' and not find(v.err, 'WRONGTYPE', 1, true)
  if (refused or not v) and known then
    v = elsewhere ~= '=' and sub(elsewhere, 2)
  elseif refused then
    return -1
  end
  changes[k] = v
end

-- Returns how many units are left of some that were charged to a counter with the changes v. The
-- twin is limit.ScaledUnits.
local function scaled(v, units, charged)
  if not v then return units end
  if type(v) == 'table' or byte(v) ~= VERSION or (#v - 1) % 20 > 0 then return 0 end
  for at = 2, #v, 20 do
    local instant, to, of = decode('<I6I7I7', v, at)
    if charged == instant or charged == 0 then
      units = min(units, down(units, to, of))
    elseif charged < instant then
      units = down(units, to, of)
    end
  end
  return units
end

local taken = 0
for k = 1, #KEYS do
  local number, limit, window, base, ground, latest, charged, units, id = decode('<BI7I5I5I6I6I6I7c9', ARGV[1], 52 * k - 51)
  local v, home = try('GET', KEYS[k]), nil
  if not v and id ~= NO_ID then
    v = from_group(KEYS[k], id, number, base)
    home = v and key_beside(KEYS[k], id, -1)
    if known and not v and not lookup(key_beside(KEYS[k], id, -1)) then return -1 end
  end
  if v and type(v) ~= 'table' then
    units = scaled(changes[k], units, charged)
    local left = units > 0 and less(v, number, limit, window, base, ground, latest, units)
    if left then
      taken = taken + 1
      if home then -- it leaves its group, whose sum holds for it no more
        if left ~= '' then call('SET', KEYS[k], left, 'PX', max(1, call('PTTL', home))) end
        group_leave(home, id)
      elseif left == '' then
        call('UNLINK', KEYS[k])
      else
        call('SET', KEYS[k], left, 'KEEPTTL')
      end
    end
  end
end
return taken
