package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"weir/internal/tenants"
)

const purgeEvery = time.Hour

// purge removes what Postgres keeps only for a time, every hour until ctx ends. Instances that
// were started together spread out: the first time comes after a part of an hour by chance.
func purge(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	wait := rand.N(purgeEvery)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if err := store.Purge(ctx); err != nil && ctx.Err() == nil {
			log.Warn("what is out of date was not removed; trying again in an hour", "error", err)
		}
		wait = purgeEvery
	}
}
