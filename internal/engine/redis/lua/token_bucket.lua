-- A bucket, as bucket.lua describes it. The twin is token_bucket.go.
--
-- In       a counter s, as for bucket.lua
-- Out      algorithms[6]
--
-- Example: that of bucket.lua.
algorithms[6] = bucket
