-- The first key of credits.lua, as scripts see it that open and close grants.
--
-- Its version is CLOSED while its grants are closed (close_credits.lua): checks then take it for
-- unknown, so none of its grants is open to them. It still has the totals.
--
-- In       for read_opened: KEYS[1]
-- Out      its value, or what a new one begins with; whether its grants are closed; where they
--          begin; and the instant of the last opening or closing in microseconds, or 0
--
-- Example: a key that does not exist has no grants, which are not closed, and no instant: 0.

local CLOSED = VERSION + 11
local STEPPED = 600000000 -- us: a clock that stepped back this far does not close grants for as long

-- Returns the value of KEYS[1]; whether its grants are closed; where they begin; and the instant of
-- the last opening, or 0.
local function read_opened()
  local v = try('GET', KEYS[1])
  local version = type(v) == 'string' and string.byte(v)
  if (version ~= CREDITS and version ~= CLOSED) or #v % GRANT_SIZE ~= 1 then return string.char(CREDITS), false, 2, 0 end
  if string.sub(v, 2, 17) ~= LAST_OPENING then return v, version == CLOSED, 2, 0 end
  return v, version == CLOSED, 2 + GRANT_SIZE, (decode('<I7', v, 18))
end

-- Reports whether what was read may be older than the last opening.
local function is_older(asked, last) return last > 0 and asked <= last and last < asked + STEPPED end
