-- Replaces keys that do not exist by spare keys, which many subjects share, in the form of a script
-- for calls of tenants that may create no counter. The state of a counter may be under another key:
-- a witness.
--
-- KEYS       the keys; for each of them its spare key; then the witnesses
-- ARGV[#ARGV]  for each key the number of its witnesses 1
-- reply      that of the script, followed by one byte for each key: 1 if the spare one was used
--
-- Example: KEYS { a, b, spare-a, spare-b, a-group }, witnesses 1 and 0. Only a-group exists. The
-- script runs with KEYS { a, spare-b }, and its reply ends with the bytes 0 and 1.

local counts = ARGV[#ARGV]
local used = {}

local function choose(all)
  local keys, n = {}, #counts
  local at = 2 * n
  for i = 1, n do
    local more = string.byte(counts, i)
    -- A key that is its own spare one is no shared counter.
    if all[i] == all[n + i] or redis.call('EXISTS', all[i], unpack(all, at + 1, at + more)) > 0 then
      keys[i], used[i] = all[i], '\0'
    else
      keys[i], used[i] = all[n + i], '\1'
    end
    at = at + more
  end
  return keys
end

local KEYS = choose(KEYS)

local function with_used(reply) return reply .. table.concat(used) end

