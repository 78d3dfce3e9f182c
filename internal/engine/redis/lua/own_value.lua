-- The value of a counter that may be in a group (group.lua).
--
-- In       a counter s: key, id, number, extra
-- Out      own_value: its value, and s.home if that is in its group; leave_group: nothing
--
-- Example: a counter has no own key, and the count 4 in its group. own_value returns 4 in the
-- format of its own key and sets s.home. After a charge, write stores 5 under the own key, and
-- leave_group removes the counter from the group.

-- Returns the value of counter s, or nil.
local function own_value(s)
  local v = fetch(s, 'GET', s.key)
  if v or s.foreign or s.id == NO_ID then return v end
  v = from_group(s.key, s.id, s.number, s.extra)
  s.home = v ~= nil
  return v
end

-- Removes counter s from its group, once it has a value of its own.
local function leave_group(s)
  if s.home then group_leave(key_beside(s.key, s.id, -1), s.id) end
end
