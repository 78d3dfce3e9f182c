-- The twin of leaky_bucket.go.
algorithms[7] = bucket
