-- The storage format of a sliding window counter: (index*base + cur)*base + prev as a whole number
-- below 2^53, which Redis stores in the 16 bytes of its object. If the counts are too large for
-- that: version and algorithm 1 byte, window number 5, count of that window 4, count of the
-- previous window 4. The base is an argument of the call and depends on the window only.
--
-- In       the window number i, the counts c and p, the base; or a stored value and the base
-- Out      the value to store; or i, c and p
--
-- Example: base 1000, window 7, count 12, previous count 30: (7*1000 + 12)*1000 + 30 = 7012030. A
-- charge of 5 is INCRBY 5000, and the value is 7017030.
--
-- The expiry is the end of the window after the next, whatever the counts are. A charge can then
-- add to the number in place, which keeps the expiry and costs half as much as SET.

-- Returns the parts, or nil if the value is invalid. A stored value was charged, so cur is not 0.
local function counter_decode(v, base)
  local x = tonumber(v)
  if not x then
    if #v ~= 14 or string.byte(v) ~= VERSION + 1 then return nil end
    local _, i, c, p = decode('<BI5I4I4', v)
    return i, c, p
  end
  if x < 0 or x >= 9007199254740992 - base * base or x ~= floor(x) then return nil end
  local rest = floor(x / base)
  local i = floor(rest / base)
  local c = rest - i * base
  if c == 0 then return nil end
  return i, c, x - rest * base
end

local function counter_encode(i, c, p, base)
  if c < base and p < base then
    local x = (i * base + c) * base + p
    if x < 9007199254740992 - base * base then return x end
  end
  return encode('<BI5I4I4', VERSION + 1, i, c, p)
end

