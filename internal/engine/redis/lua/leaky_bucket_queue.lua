-- The twin of leaky_bucket_queue.go: a bucket that also returns how long to wait for earlier
-- requests.
algorithms[8] = {
  read = bucket_read, when = bucket_when, charge = bucket_charge, write = bucket_write,
  delay = function(s, t) return bucket_when(s, t, 0) - t end,
}
