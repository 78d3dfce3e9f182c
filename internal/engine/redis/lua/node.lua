-- Reads keys of all slots of a node, in the form of evaluate_many.lua that decides calls of many
-- tenants on a node of a Redis Cluster. Lines that begin with @node are only in this form, and
-- lines that end with @slot are not.
--
-- ARGV     the keys, which are KEYS otherwise; then ARGV[1] to ARGV[4] of evaluate_many.lua; then
--          numbers of consecutive keys with the same hash tag 1
-- out      KEYS and ARGV[1] to ARGV[4] of evaluate_many.lua, read_keys, read_all and value_of
--
-- Example: three calls, two of tenant a and one of tenant b, have the keys a1, a2 and b1. The
-- numbers are 2 and 1. read_keys sends MGET a1 a2 and GET b1. The slot of b has moved: its call is
-- answered 254, and those of a are decided.
--
-- The keys are not declared, because declared keys must share a slot. Redis then checks every
-- command. It refuses a key whose slot another node serves, and also a key that does not exist if
-- its slot is being moved to another node, because it may exist there. Such a key is ELSEWHERE. A
-- call that reads one is not decided, and nothing is written for it.
--
-- A call writes only to keys that this run has read for it, and none of them was ELSEWHERE. Slots
-- do not change during a run, so a write is never refused because of its slot. There is one case in
-- which this depends on the run itself: after it has deleted a key, it reads the key again before
-- another call may write it.

local ELSEWHERE = {}
local NOT_SERVED = string.char(254)
local KEYS, ARGV = ARGV, { unpack(ARGV, #ARGV - 4) }

-- Returns the value of a key: false if there is none or one of another type.
local function value_of(key)
  local v = try('GET', key)
  if type(v) ~= 'table' then return v end
  if string.find(v.err, 'WRONGTYPE', 1, true) then return false end
  if not string.find(v.err, 'non local key', 1, true) then error(v) end
  return ELSEWHERE
end

-- Reads keys that share a slot, from the given index to another, into a list.
local function read_span(keys, from, to, values)
  if from < to then
    local read = try('MGET', unpack(keys, from, to))
    if not read.err then
      for i = from, to do values[i] = read[i - from + 1] end
      return
    end
  end
  for i = from, to do values[i] = value_of(keys[i]) end
end

-- Reads all keys of the run into a list.
local function read_keys(values)
  local spans, from = ARGV[5], 1
  for i = 1, #spans do
    local to = from + string.byte(spans, i) - 1
    read_span(KEYS, from, to, values)
    from = to + 1
  end
end

-- Returns the values of keys that share a slot, or nil if one of them is ELSEWHERE.
local function read_all(keys)
  local values = {}
  read_span(keys, 1, #keys, values)
  for i = 1, #keys do
    if values[i] == ELSEWHERE then return nil end
  end
  return values
end
