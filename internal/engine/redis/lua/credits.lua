-- Prepaid units of a subject for a rule: what a check needs beyond the limit is taken from its
-- grants, in the order in which they are passed.
--
-- In       for read_credits: a counter s with the keys s.spent_key and s.outbox, and its arguments:
--          number of grants 1, then for each its id 16, units 7, expiry 6
-- Out      s.spends, the units that the call takes from grants; s.takes, those of the window;
--          s.balance, the units left of open grants; s.unopened, those of grants that are not open
--
-- Example: a limit of 10 is used up, a grant has 500 units, of which 20 are spent. A call costs 3.
-- read_credits sets s.balance to 480. cover_by_credits finds 0 units left in the window: s.spends
-- is 3, s.takes is 0. spend_credits stores 23 units spent, in both keys.
--
-- The first key has what was spent of the grants that are open: version 1 byte, then for each grant
-- its id 16, the units spent in total 7, and its expiry in milliseconds 6 (0: never). A grant that
-- is not in there is not open: open_credits.lua has not yet stored what was spent of it. Checks
-- cannot spend it, so spent units never become available again if this key is lost. The entry with
-- the id 0 has the instant of the last opening instead of units.
--
-- The second key is the outbox of the tenant, a hash: what was spent of a grant in total, by its
-- id, until that is stored elsewhere. It is written in the step that spends, so a total is never
-- lost with an instance.

local CREDITS = VERSION + 10
local GRANT_SIZE = 29
local LAST_OPENING = string.rep('\0', 16)
local MAX_BALANCE = 8000000000000000 -- limit.MaxBalance; the sum with a limit is below 2^53
local CREDITS_LIFE = 34560000000 -- 400 days
local OUTBOX_LIFE = 2592000000 -- 30 days
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

-- Reads the credits of counter s. Returns where its arguments end. The twin is Purse.Fill in
-- credits.go.
local function read_credits(s, at, now)
  local v = fetch(s, 'GET', s.spent_key)
  if not v or string.byte(v) ~= CREDITS or #v % GRANT_SIZE ~= 1 or #v > MOST_READ then v = '' end
  s.value, s.grants, s.balance, s.unopened = v, {}, 0, 0
  local count = string.byte(ARGV[1], at)
  at = at + 1
  for _ = 1, count do
    local id, units, till
    id, units, till, at = decode('<c16I7I6', ARGV[1], at)
    if till == 0 or till > now then
      local j = place_of(v, id)
      if j then
        local spent = (decode('<I7', v, j + 16))
        local left = max(0, units - spent)
        s.grants[#s.grants + 1] = { j, left, till, spent }
        s.balance = min(s.balance + left, MAX_BALANCE)
      else
        s.unopened = min(s.unopened + units, MAX_BALANCE)
      end
    end
  end
  return at
end

-- Divides the cost of a call: the units of the window come first. The twin is Purse.cover.
local function cover_by_credits(s)
  local remaining = max(0, (s.excess or s.limit) - s.used)
  s.spends = min(max(0, s.cost - remaining), s.balance)
  s.takes = s.cost - s.spends
end

-- Returns when a cost is allowed that is not allowed now, or nil for never. Grants expire while the
-- window becomes free. The twin is Purse.retryAt.
local function credits_retry(s, when, now)
  local balance, i, at = s.balance, 1, nil
  while true do
    local most = s.quota + balance - s.cost
    local grant = s.grants[i]
    if most >= 0 then
      local t = when(s, most)
      if not grant or grant[3] == 0 or t < grant[3] then
        at = t
        break
      end
    end
    if not grant then break end
    balance, i = balance - grant[2], i + 1
  end
  if s.unopened > 0 then return min(at or now + OPENED_WITHIN, now + OPENED_WITHIN) end
  return at
end

-- Writes what an allowed call spends. The twins are Purse.Pay and Memory.spend in
-- memory_credits.go.
local function spend_credits(s)
  local v, rest, totals = s.value, s.spends, {}
  for i = 1, #s.grants do
    local j, left, _, spent = unpack(s.grants[i])
    local part = min(rest, left)
    if part > 0 then
      rest = rest - part
      totals[#totals + 1] = string.sub(v, j, j + 15)
      totals[#totals + 1] = spent + part
      v = string.sub(v, 1, j + 15) .. encode('<I7', spent + part) .. string.sub(v, j + 23)
    end
  end
  if type(try('HSET', s.outbox, unpack(totals))) == 'table' then -- a key of another type
    call('UNLINK', s.outbox)
    call('HSET', s.outbox, unpack(totals))
  end
  call('PEXPIRE', s.outbox, OUTBOX_LIFE)
  call('SET', s.spent_key, v, 'PX', CREDITS_LIFE)
end
