-- What the files of the algorithms use to read a counter s.
--
-- In       a counter s, a reading command, its key and perhaps a range
-- Out      algorithms, the table that the files of the algorithms fill, by number; fetch
--
-- Example: fetch(s, 'GET', s.key) returns "123", or nil without a value. If the key holds a list,
-- it returns nil and sets s.foreign, so the next charge overwrites it.

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
