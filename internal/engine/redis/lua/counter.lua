-- What the files of the algorithms use to read a counter s.

local algorithms = {} -- by number

-- Returns the result of a reading command for a key of counter s, or nil if the key has another
-- type.
local function fetch(s, command, key, from, to)
  local v
  if from then v = try(command, key, from, to) else v = try(command, key) end
  if type(v) ~= 'table' then return v or nil end
  if not string.find(v.err, 'WRONGTYPE', 1, true) then error(v) end
  s.foreign = true
end
