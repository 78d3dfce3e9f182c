-- A number multiplied by a ratio, exactly, for greater numbers than muldiv of prelude.lua takes.
--
-- In       a, to and of below 2^50, at least 0, and of at least 1; most
-- Out      floor(a*to/of) and the remainder, or a quotient above most and any remainder
--
-- Example: ratio(7, 10, 4, 1000) is 17, 2.

-- Two bits of a at a time, so that no intermediate reaches 2^53.
local function ratio(a, to, of, most)
  if a * to < 4503599627370496 then
    local quotient = floor(a * to / of)
    return quotient, a * to - quotient * of
  end
  local quotient, rest = 0, 0
  for shift = 48, 0, -2 do
    local x = rest * 4 + floor(a / 2 ^ shift) % 4 * to
    local q = floor(x / of)
    quotient, rest = quotient * 4 + q, x - q * of
    if quotient > most then break end
  end
  return quotient, rest
end
