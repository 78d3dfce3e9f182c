-- The value of counter s, which may be in its group.
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
