-- Stores how many bytes of records of a tenant an instance has written that are alive, and returns
-- those of the other instances.
--
-- KEYS[1]  a hash. Each field has the bytes of one instance, by expiry: pairs of the time in
--          milliseconds and the bytes, separated by blanks
-- ARGV[1]  the field of the instance
-- ARGV[2]  how many milliseconds a record lives at most
-- ARGV     then, for each expiry, the milliseconds until then, and the bytes
-- reply    the bytes of the other instances
--
-- Example: the clock is 6000. The hash has a = "5000 100 9000 200" and b = "7000 40".
--   ARGV     { "b", "64000", "4000", "70" }
--   reply    200: of a, what expires at 9000. The field b becomes "10000 70"

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = {}
for i = 3, #ARGV, 2 do
  own[#own + 1] = string.format('%.0f %s', now + tonumber(ARGV[i]), ARGV[i + 1])
end
if #own > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], table.concat(own, ' '))
else
  redis.call('HDEL', KEYS[1], ARGV[1])
end

local others, last = 0, 0
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local alive = 0
  for expires, bytes in string.gmatch(fields[i + 1], '(%d+) (%d+)') do
    expires = tonumber(expires)
    -- What cannot be right is treated as absent.
    if expires > now and expires <= now + tonumber(ARGV[2]) and #bytes <= 13 then
      alive = alive + tonumber(bytes)
      if expires > last then last = expires end
    end
  end
  if alive == 0 then
    redis.call('HDEL', KEYS[1], fields[i])
  elseif fields[i] ~= ARGV[1] then
    others = others + alive
  end
end
if last > 0 then redis.call('PEXPIREAT', KEYS[1], last) end
return others
