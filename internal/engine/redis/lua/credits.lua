-- Prepaid units of a subject for a rule, in a purse p: what a check needs beyond the limit is taken
-- from its grants, in the order in which they are passed. Counters of one call can share a purse,
-- if their rule counts by more than the subject. They get units in their order, and the call is
-- allowed only if the purse has enough for all of them.
--
-- In       for find_purse: a counter s, and its arguments: if it is the first one with the purse,
--          the instant in milliseconds at which this server is known to have lost data 6 (0: it has
--          not), number of grants 1, then for each its id 16, units 7, expiry 6; else the number of
--          that counter 2
-- Out      s.purse: balance, the units left of open grants; unopened, those of grants that are not
--          open; needed, those that the counters need which have decided. s.spends, the units that
--          the counter takes from the purse, and s.takes, those of its window
--
-- Example: a limit of 10 is used up, a grant has 500 units, of which 20 are spent. A call costs 3.
-- find_purse sets p.balance to 480. cover_by_credits finds 0 units left in the window: s.spends is
-- 3, s.takes is 0. note_need sets p.needed to 3. spend_credits stores 23 units spent, in both keys.
--
-- The first key has what was spent of the grants that are open: version 1 byte, then for each grant
-- its id 16, the units spent in total 7, and its expiry in milliseconds 6 (0: never). A grant that
-- is not in there is not open: open_credits.lua has not yet stored what was spent of it. Checks
-- cannot spend it, so spent units never become available again if this key is lost. The entry with
-- the id 0 has the instant of the last opening that changed grants instead of units, and that of
-- the last opening by the clock of this server instead of an expiry. If this server has lost data
-- since, such as by the restore of an older dump, the totals may be older ones: no grant is open
-- then.
--
-- The second key is the outbox of the tenant, a hash: what was spent of a grant in total, by its
-- id, until that is stored elsewhere. It is written in the step that spends, so a total is never
-- lost with an instance.
--
-- The first key may expire while grants are left, and is not missed by itself: its grants are not
-- open then, so a check that needs them has them opened, with what the outbox and Postgres have of
-- them. So it is kept for 30 days since it was written, and no longer than a day behind the expiry
-- of its last grant. A tenant that grants units to ever new subjects then fills little memory.

local CREDITS = VERSION + 10
local GRANT_SIZE = 29
local LAST_OPENING = string.rep('\0', 16)
local MAX_BALANCE = 8000000000000000 -- limit.MaxBalance; the sum with a limit is below 2^53
local CREDITS_LIFE = 2592000000 -- 30 days
local EXPIRED_LIFE = 86400000 -- 1 day: clocks differ by less, and no opening is on its way for as long
local OUTBOX_LIFE = 5184000000 -- 60 days: a total that nobody stores outlives the first key
local OPENED_WITHIN = 1000 -- ms
-- An opening leaves about 100 grants. Earlier versions left more: such a value is not searched. Its
-- grants count as not open, so that the next opening removes most of them.
local MOST_READ = 1 + 200 * GRANT_SIZE

-- Returns where a grant is in the value, or nil. The search is one of the C library, which takes a
-- small part of the time for decoding all entries.
local function place_of(v, id)
  local j = string.find(v, id, 2, true)
  while j and j % GRANT_SIZE ~= 2 do j = string.find(v, id, j + 1, true) end
  return j
end

-- Returns when the grants of a value were opened last, by the clock of this server, and 0 if that
-- is not known.
local function opened_at(v)
  if string.sub(v, 2, 17) ~= LAST_OPENING then return 0 end
  return (decode('<I6', v, 25))
end

-- Returns for how long to keep the first key, of which the last grant expires at an instant, or
-- never with 0.
local function credits_life(till, now)
  if till == 0 then return CREDITS_LIFE end
  return min(CREDITS_LIFE, max(0, till - now) + EXPIRED_LIFE)
end

-- Reads the purse of counter s, and returns where its arguments end. The twin is Purse.Fill in
-- credits.go.
local function read_purse(s, spent_key, outbox, at, now)
  local lost, count
  lost, count, at = decode('<I6B', ARGV[1], at)
  local v = fetch(s, 'GET', spent_key)
  if not v or string.byte(v) ~= CREDITS or #v % GRANT_SIZE ~= 1 or #v > MOST_READ then v = '' end
  if lost > 0 and opened_at(v) < lost then v = '' end
  local p = {
    spent_key = spent_key, outbox = outbox, value = v, grants = {}, balance = 0, unopened = 0,
    needed = 0, needs = {}, least = 0, free = 0,
  }
  for _ = 1, count do
    local id, units, till
    id, units, till, at = decode('<c16I7I6', ARGV[1], at)
    if till == 0 or till > now then
      local j = place_of(v, id)
      if j then
        local spent = (decode('<I7', v, j + 16))
        local left = max(0, units - spent)
        p.grants[#p.grants + 1] = { j, left, till, spent }
        p.balance = min(p.balance + left, MAX_BALANCE)
      else
        p.unopened = min(p.unopened + units, MAX_BALANCE)
      end
    end
  end
  s.purse = p
  return at
end

-- Gives counter s its purse: a new one, or that of an earlier counter. args.purses lists them.
local function find_purse(s, args, counters, now)
  if s.shares then
    local first
    first, args.at = decode('<I2', ARGV[1], args.at)
    s.purse = counters[first].purse
    return
  end
  args.at = read_purse(s, KEYS[args.keys + 1], KEYS[args.keys + 2], args.at, now)
  args.keys, args.purses = args.keys + 2, args.purses or {}
  args.purses[#args.purses + 1] = s.purse
end

-- Divides the cost of counter s: the units of the window come first. The twin is Purse.cover.
local function cover_by_credits(s)
  local p = s.purse
  local remaining = max(0, (s.excess or s.limit) - s.used)
  s.spends = min(max(0, s.cost - remaining), max(0, p.balance - p.needed))
  s.takes = s.cost - s.spends
end

-- Notes what counter s needs that has decided. What is missing counts, too: later counters of a
-- denied call then have waits after which all of them fit. The twin is Purse.note.
local function note_need(s)
  local p, units = s.purse, max(s.spends, s.cost - s.remaining)
  if units > 0 then
    p.needed = min(p.needed + units, MAX_BALANCE)
    p.needs[#p.needs + 1] = s
  end
end

-- Returns when the cost of s fits, at the given instant or later, while others need units of the
-- purse, or nil for never. Grants expire while the window becomes free. The twin is Purse.fitsAt.
local function fits_at(s, when, others, from)
  local p = s.purse
  local balance, i = p.balance - others, 1
  while true do
    local most = s.quota + balance - s.cost
    local grant = p.grants[i]
    if most >= 0 and (balance >= 0 or others == 0) then
      local t = from
      if most < s.quota then t = max(from, when(s, most)) end -- else the credits pay all of it
      if not grant or grant[3] == 0 or t < grant[3] then return t end
    end
    if not grant then return nil end
    balance, i = balance - grant[2], i + 1
  end
end

-- Returns when a cost is allowed that is not allowed now, or nil for never. The counters before it
-- count with what they need now. If it never fits beside that, they count with what they need when
-- their windows are free. The twin is Purse.retryAt.
local function credits_retry(s, when, now)
  local p = s.purse
  local at = fits_at(s, when, p.needed, now)
  if not at and p.needed > 0 then
    for _, o in ipairs(p.needs) do
      local limit = o.excess or o.limit
      p.least = min(p.least + max(0, o.cost - limit), MAX_BALANCE)
      p.free = max(p.free, when(o, max(0, limit - o.cost)))
    end
    p.needs = {}
    at = fits_at(s, when, p.least, max(p.free, now + 1))
  end
  if p.unopened > 0 then return min(at or now + OPENED_WITHIN, now + OPENED_WITHIN) end
  return at
end

-- Writes what an allowed call spends of a purse. Its grants are in the order of expiry. The twin is
-- Purse.Pay.
local function spend_purse(p, now)
  local v, rest, totals = p.value, p.needed, {}
  for i = 1, #p.grants do
    local j, left, _, spent = unpack(p.grants[i])
    local part = min(rest, left)
    if part > 0 then
      rest = rest - part
      totals[#totals + 1] = string.sub(v, j, j + 15)
      totals[#totals + 1] = spent + part
      v = string.sub(v, 1, j + 15) .. encode('<I7', spent + part) .. string.sub(v, j + 23)
    end
  end
  if type(try('HSET', p.outbox, unpack(totals))) == 'table' then -- a key of another type
    call('UNLINK', p.outbox)
    call('HSET', p.outbox, unpack(totals))
  end
  call('PEXPIRE', p.outbox, OUTBOX_LIFE)
  call('SET', p.spent_key, v, 'PX', credits_life(p.grants[#p.grants][3], now))
end

-- Writes what an allowed call spends. The twin is Memory.spend in memory_credits.go.
local function spend_credits(purses, now)
  for i = 1, #purses do
    if purses[i].needed > 0 then spend_purse(purses[i], now) end
  end
end
