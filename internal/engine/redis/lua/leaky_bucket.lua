-- A bucket, as bucket.lua describes it. The twin is leaky_bucket.go.
--
-- In       a counter s, as for bucket.lua
-- Out      algorithms[7]
--
-- Example: that of bucket.lua.
algorithms[7] = bucket
