-- A bucket that also returns how long to wait for earlier requests. The twin is
-- leaky_bucket_queue.go.
--
-- In       a counter s, as for bucket.lua
-- Out      algorithms[8]
--
-- Example: limit 10 per 1000 ms. The bucket is full in 250 ms: a request is allowed, and must wait
-- 250 ms before it proceeds. The next one waits 350 ms.
algorithms[8] = {
  read = bucket_read, when = bucket_when, charge = bucket_charge, write = bucket_write,
  delay = function(s, t) return bucket_when(s, t, 0) - t end,
}
