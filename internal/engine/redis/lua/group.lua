-- The storage format of counters that share a key: the counters of one group, which count by the
-- same values under rules that match every resource. Their states are stored in one value, with a
-- count of the units charged to all of them since the states were written. As long as no window
-- ends and the count stays below what the fullest counter had left, only this count changes, and no
-- state is read.
--
-- In       the value of a group, or a counter's own key and the id of its rule
-- Out      group_decode: the members with their states; from_group: the value that one member would
--          have under its own key; group_leave: nothing, the member is removed
--
-- Example: two fixed windows, 10 a minute and 100 an hour, hold the counts 4 and 40. The most units
-- that both can still be charged is 6. Six checks of cost 1 only change the sum, from 0 to 6. The
-- seventh unpacks the states: 10 of 10 and 46 of 100.
--
-- Value: version 1 byte, number of members that are counted together 1, signature of these, their
-- order and their limits 8, the instant from which this is valid 6, the instant until which it is
-- valid 6, units charged to each since then 7, maximum of these units 7. Then the states of these
-- members: window number or end 6, count 7, count of the previous window (for a calendar window:
-- its length) 4; and for each of them its name 6 and its expiry 6. Then all other members, whose
-- rules were changed or are off: name 6, expiry 6, state 17. All packed little-endian.
--
-- A counter is in its group or under its own key, never in both. A charge moves it from the other
-- place. This keeps counts when rules join and leave a group. One key is computed from the other by
-- the rule's id, 9 bytes: the last 9 bytes of a counter's own key are those of its group's key plus
-- the id, added as numbers of 5 and 4 bytes. These keys are therefore not in KEYS, but they have
-- the same slot. A member's name is the beginning of its id.

local byte, char, sub, rep, find = string.byte, string.char, string.sub, string.rep, string.find
local GROUP = VERSION + 9
local HEAD_SIZE, STATE_SIZE, MEMBER_SIZE, SPENT_AT = 36, 17, 29, 22
local SPENT_TEXT = '22'
local MOST_OTHERS = 100
local NO_ID = rep('\0', 9)

-- written has the values that this run has stored, by key, and false for deleted ones. spents has
-- the units charged to the members of a group if nothing else changed.
local written, spents = {}, {}

local function lookup(key)
  local v = written[key]
  if v == nil then return call('MGET', key)[1] end -- MGET takes other types for nothing
  return v
end

-- Returns the key whose distance from another key is sign times the id. The twin is keyBeside in
-- engine/key.go.
local function key_beside(key, id, sign)
  local a, b = decode('<I5I4', key, #key - 8)
  local c, d = decode('<I5I4', id)
  return sub(key, 1, -10) .. encode('<I5I4', (a + sign * c) % 1099511627776, (b + sign * d) % 4294967296)
end

-- Returns the members of a value, or nil if it is invalid.
local function group_decode(v, spent)
  local size = (#v - HEAD_SIZE) / MEMBER_SIZE
  if size < 1 or size ~= floor(size) or byte(v) ~= GROUP then return nil end
  local together = byte(v, 2)
  if together > size then return nil end
  if not spent then spent = decode('<I7', v, SPENT_AT + 1) end
  local g = { size = size, place = {}, names = {}, tills = {}, a = {}, b = {}, c = {} }
  for j = 1, size do
    local name, till, a, b, c
    if j <= together then
      a, b, c = decode('<I6I7I4', v, HEAD_SIZE + 1 + STATE_SIZE * (j - 1))
      b = b + spent
      name, till = decode('<c6I6', v, HEAD_SIZE + 1 + STATE_SIZE * together + 12 * (j - 1))
    else
      name, till, a, b, c = decode('<c6I6I6I7I4', v, HEAD_SIZE + 1 + MEMBER_SIZE * (j - 1))
    end
    g.place[name] = j
    g.names[j], g.tills[j], g.a[j], g.b[j], g.c[j] = name, till, a, b, c
  end
  return g
end

-- Adds the members of g for which keep(j) is true to a list for packing, and returns their number.
local function add_others(list, g, keep)
  local n, count = #list, 0
  for j = 1, g.size do
    if count < MOST_OTHERS and keep(j) then
      list[n + 1], list[n + 2], list[n + 3], list[n + 4], list[n + 5] = g.names[j], g.tills[j], g.a[j], g.b[j], g.c[j]
      n, count = n + 5, count + 1
    end
  end
  return count
end

-- Removes a member from its group.
local function group_leave(key, id)
  local v = lookup(key)
  local g = v and group_decode(v, spents[key])
  local at = g and g.place[sub(id, 1, 6)]
  if not at then return end
  local list = {}
  local count = add_others(list, g, function(j) return j ~= at end)
  spents[key] = nil
  if count == 0 then
    call('UNLINK', key)
    written[key] = false
    return
  end
  v = encode('<BBc8I6I6I7I7' .. rep('c6I6I6I7I4', count), GROUP, 0, rep('\0', 8), 0, 0, 0, 0, unpack(list))
  call('SET', key, v, 'KEEPTTL')
  written[key] = v
end

-- Returns the state of one member of a value, or nil. A check of 32 counters may look for each of
-- them in a group of 132 members, so it does not decode the others.
local function group_member(v, name, spent)
  local size = (#v - HEAD_SIZE) / MEMBER_SIZE
  if size < 1 or size ~= floor(size) or byte(v) ~= GROUP then return nil end
  local together = byte(v, 2)
  if together > size then return nil end
  local names = HEAD_SIZE + 1 + STATE_SIZE * together
  local others = HEAD_SIZE + 1 + MEMBER_SIZE * together
  local at = find(v, name, names, true)
  while at do
    if at < others and (at - names) % 12 == 0 then
      local a, b, c = decode('<I6I7I4', v, HEAD_SIZE + 1 + STATE_SIZE * ((at - names) / 12))
      return a, b + (spent or (decode('<I7', v, SPENT_AT + 1))), c
    elseif at >= others and (at - others) % MEMBER_SIZE == 0 then
      local _, a, b, c = decode('<I6I6I7I4', v, at + 6)
      return a, b, c
    end
    at = find(v, name, at + 1, true)
  end
end

-- Returns the value that a counter would have under its own key, if it is in its group.
local function from_group(own, id, number, base)
  local key = key_beside(own, id, -1)
  local v = lookup(key)
  if not v then return nil end
  local a, b, c = group_member(v, sub(id, 1, 6), spents[key])
  if not a or b == 0 then return nil end
  if number == 1 then return counter_encode(a, b, c, base) end
  return fixed_encode(number, a, b, c)
end
