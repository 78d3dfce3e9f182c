-- The twin of token_bucket.go.
algorithms[6] = bucket
