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
-- cannot spend it, so spent units never become available again if this key is lost.
--
-- The second key is the outbox of the tenant, a hash: what was spent of a grant in total, by its
-- id, until that is stored elsewhere. It is written in the step that spends, so a total is never
-- lost with an instance.

local CREDITS = VERSION + 10
local GRANT_SIZE = 29
local MAX_BALANCE = 8000000000000000 -- limit.MaxBalance; the sum with a limit is below 2^53
local CREDITS_LIFE = 34560000000 -- 400 days
local OUTBOX_LIFE = 2592000000 -- 30 days
local OPENED_WITHIN = 1000 -- ms

-- Reads the credits of counter s. Returns where its arguments end. The twin is Purse.Fill in
-- credits.go.
local function read_credits(s, at, now)
  local ids, spents, tills, place = {}, {}, {}, {}
  local v = fetch(s, 'GET', s.spent_key)
  if v and string.byte(v) == CREDITS and #v % GRANT_SIZE == 1 then
    for j = 2, #v, GRANT_SIZE do
      local n = #ids + 1
      ids[n], spents[n], tills[n] = decode('<c16I7I6', v, j)
      place[ids[n]] = n
    end
  end
  s.ids, s.spents, s.tills, s.grants, s.balance, s.unopened = ids, spents, tills, {}, 0, 0
  local count = string.byte(ARGV[1], at)
  at = at + 1
  for _ = 1, count do
    local id, units, till
    id, units, till, at = decode('<c16I7I6', ARGV[1], at)
    if till == 0 or till > now then
      local n = place[id]
      if n then
        local left = max(0, units - spents[n])
        s.grants[#s.grants + 1] = { n, left, till }
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
local function spend_credits(s, now, virtual)
  local rest = s.spends
  for i = 1, #s.grants do
    local n, part = s.grants[i][1], min(rest, s.grants[i][2])
    if part > 0 then
      s.spents[n] = s.spents[n] + part
      rest = rest - part
      if type(try('HSET', s.outbox, s.ids[n], s.spents[n])) == 'table' then -- a key of another type
        call('UNLINK', s.outbox)
        call('HSET', s.outbox, s.ids[n], s.spents[n])
      end
    end
  end
  call('PEXPIRE', s.outbox, OUTBOX_LIFE)
  local v = string.char(CREDITS)
  for n = 1, #s.ids do
    if s.tills[n] == 0 or s.tills[n] + SLACK > now or virtual then
      v = v .. encode('<c16I7I6', s.ids[n], s.spents[n], s.tills[n])
    end
  end
  call('SET', s.spent_key, v, 'PX', CREDITS_LIFE)
end
