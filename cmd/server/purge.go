package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"weir/internal/tenants"
)

const purgeEvery = time.Hour

// purge removes what Postgres keeps only for a time, of audit trails what is older than auditDays
// (0: nothing), every hour until ctx ends. Instances that were started together spread out: the
// first time comes after a part of an hour by chance.
func purge(ctx context.Context, store *tenants.Store, auditDays int, log *slog.Logger) {
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
		purgePeople(ctx, store, log)
		if auditDays > 0 {
			purgeAudit(ctx, store, time.Now().AddDate(0, 0, -auditDays), log)
		}
		wait = purgeEvery
	}
}

// purgePeople forgets who is in no tenant any more, and says how many they were.
func purgePeople(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	purged, err := store.PurgePeople(ctx)
	if purged != (tenants.PurgedPeople{}) {
		log.Info("people without a tenant forgotten", "people", purged.People, "invitations", purged.Invitations)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("people without a tenant were not all forgotten; trying again in an hour", "error", err)
	}
}

// purgeAudit removes what audit trails have from before a time, and says how much that was.
func purgeAudit(ctx context.Context, store *tenants.Store, before time.Time, log *slog.Logger) {
	removed, err := store.PurgeAudit(ctx, before)
	if removed > 0 {
		log.Info("old audit rows removed", "rows", removed, "before", before)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("old audit rows were not all removed; trying again in an hour", "error", err)
	}
}
