-- Adds counters to the list of a tenant's counters, removes those that have expired, and returns
-- the length of the list. A counter that is in the list keeps its expiry if that is later: an
-- instance adds what it has charged some seconds later, so an earlier charge may follow a later
-- one.
--
-- KEYS[1]  the list, a sorted set of names by expiry
-- ARGV     for each counter its expiry in milliseconds, and its name
-- reply    the number of counters in the list
--
-- Example: the list has a until 5000 and b until 9000. The clock is 6000.
--   ARGV     { "8000", "c" }
--   reply    2: a has expired

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if #ARGV > 0 then redis.call('ZADD', KEYS[1], 'GT', unpack(ARGV)) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. string.format('%.0f', now))
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
if last[2] then redis.call('PEXPIREAT', KEYS[1], last[2]) end
return redis.call('ZCARD', KEYS[1])
