-- Every allowed request of the window, as prelude.lua describes algorithms. The twin is
-- sliding_window_log.go, with at and Remaining for read, when, and Charge.
--
-- In       a counter s: limit, window
-- Out      s.used; s.first, the first entry that counts; s.before, the sum of all entries before
--          it; s.total, the sum of all
--
-- Example: a window of 60000, at 75000, with requests of cost 2 at 10000, 3 at 20000 and 1 at
-- 70000. The entries are (10000, 2), (20000, 5), (70000, 6). s.first is 2, s.before is 2, and
-- s.used is 6 - 2 = 4. when(s, t, 1) is 80000, when the second one leaves the window.
--
-- Value: version and algorithm 1 byte, sum of all dropped costs
-- 6, then an entry for each millisecond with an allowed request, oldest first: the instant 6, the
-- sum of all costs up to it 6. With sums, every lookup is a binary search, so a check reads only
-- some entries.

local HEAD, ENTRY = 7, 12
local AHEAD = HEAD + 32 * ENTRY -- bytes read at once: short logs whole
local MOST_SUM = 140737488355328 -- 2^47, in 6 bytes; centuries of admissions

-- Returns the instant and the sum of entry i, counted from 1.
local function log_entry(s, i)
  if i == s.count then return s.newest, s.total end
  local at = HEAD + (i - 1) * ENTRY
  if at + ENTRY <= #s.head then return decode('<I6I6', s.head, at + 1) end
  return decode('<I6I6', call('GETRANGE', s.key, at, at + ENTRY - 1))
end

-- Returns the first of the entries from .. s.count whose instant (field 1) or sum (field 2) is
-- greater than what; s.count + 1 if there is none.
local function search(s, from, field, what)
  local low, high = from, s.count + 1
  while low < high do
    local middle = floor((low + high) / 2)
    local value = select(field, log_entry(s, middle))
    if value > what then high = middle else low = middle + 1 end
  end
  return low
end

local function absent(s, t, foreign)
  s.count, s.stored, s.first, s.used = 0, 0, 1, 0
  s.base, s.total, s.at, s.newest = 0, 0, t, 0
  if foreign then s.foreign = true end
end

algorithms[2] = {
  read = function(s, t)
    local head = fetch(s, 'GETRANGE', s.key, 0, AHEAD - 1)
    if not head or head == '' then return absent(s, t) end
    local size = #head
    if size == AHEAD then size = call('STRLEN', s.key) end
    local count = (size - HEAD) / ENTRY
    if count < 1 or count ~= floor(count) or string.byte(head) ~= VERSION + 2 then
      return absent(s, t, true)
    end
    local _, base = decode('<BI6', head)
    s.head, s.base, s.count, s.stored = head, base, 0, count
    s.newest, s.total = log_entry(s, count)
    s.count = count
    if s.newest - t >= HORIZON or s.total > MOST_SUM then return absent(s, t, true) end
    s.at = max(t, s.newest)
    local from = s.at - s.window
    s.first = 1
    if log_entry(s, 1) <= from then s.first = search(s, 2, 1, from) end
    if s.first > 1 then
      local _, before = log_entry(s, s.first - 1)
      s.before = before
    else
      s.before = base
    end
    s.used = s.total - s.before
    if s.used < 0 or s.used > MOST then return absent(s, t, true) end
  end,
  when = function(s, t, m)
    local last = search(s, s.first, 2, s.total - m - 1)
    return (log_entry(s, last)) + s.window
  end,
  charge = function(s, cost)
    s.previous = s.total
    s.total = s.total + cost
    if s.count == 0 or s.newest ~= s.at then s.count = s.count + 1 end
    s.newest = s.at
  end,
  write = function(s, ttl)
    local new = encode('<I6I6', s.newest, s.total)
    local dead = s.first - 1
    if dead == s.stored then -- nothing stored counts any more
      call('SET', s.key, encode('<BI6', VERSION + 2, s.previous) .. new, 'PX', ttl)
      return
    end
    local after = HEAD + (s.count - 1) * ENTRY -- where the new entry goes
    if 2 * dead > s.stored then
      -- Rewriting only when most entries have expired costs one entry per allowed request on
      -- average.
      local live = ''
      if after > HEAD + dead * ENTRY then
        live = call('GETRANGE', s.key, HEAD + dead * ENTRY, after - 1)
      end
      call('SET', s.key, encode('<BI6', VERSION + 2, s.before) .. live .. new, 'PX', ttl)
      return
    end
    if s.count == s.stored then
      call('SETRANGE', s.key, after, new)
    else
      call('APPEND', s.key, new)
    end
    call('PEXPIRE', s.key, ttl)
  end,
  heal = function(s, ttl)
    if s.stored > 0 and call('PTTL', s.key) == -1 then call('PEXPIRE', s.key, ttl) end
  end,
}
