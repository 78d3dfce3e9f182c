package main

import (
	"context"
	"log/slog"
	"time"

	"weir/internal/tenants"
)

const (
	purgeEvery       = time.Hour
	purgeUsageEvery  = 10 * time.Minute
	deletedRowsEvery = time.Minute
)

// purge deletes what Postgres keeps for a limited time, every hour until ctx ends. Audit rows older
// than auditDays are deleted, unless auditDays is 0.
func purge(ctx context.Context, store *tenants.Store, auditDays int, log *slog.Logger) {
	repeat(ctx, purgeEvery, func() (more bool) {
		if err := store.FollowClock(ctx); err != nil {
			log.Warn("expired rows not deleted, because the clock of Postgres is unknown; retrying in an hour", "error", err)
			return false
		}
		if err := store.Purge(ctx); err != nil && ctx.Err() == nil {
			log.Warn("expired rows were not all deleted; retrying in an hour", "error", err)
		}
		if _, err := store.PurgeSecurityEvents(ctx); err != nil && ctx.Err() == nil {
			log.Warn("old security events were not all deleted; retrying in an hour", "error", err)
		}
		purgeKeys(ctx, store, log)
		purgeCredits(ctx, store, log)
		purgePeople(ctx, store, log)
		purgeTiers(ctx, store, log)
		if auditDays > 0 {
			purgeAudit(ctx, store, store.Now().AddDate(0, 0, -auditDays), log)
		}
		return false
	})
}

// deleteTenantRows deletes the rows of tenants that were deleted, until ctx ends.
func deleteTenantRows(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	repeat(ctx, deletedRowsEvery, func() (more bool) {
		done, err := store.DeleteTenantRows(ctx)
		for _, tenant := range done {
			log.Info("all rows of a deleted tenant deleted", "tenant", tenant)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("rows of deleted tenants were not all deleted; retrying in a minute", "error", err)
		}
		return false
	})
}

// purgeUsage deletes usage that exceeds its retention, until ctx ends.
func purgeUsage(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	repeat(ctx, purgeUsageEvery, func() (more bool) {
		if err := store.KeepUsage(ctx); err != nil && ctx.Err() == nil {
			log.Error("expired usage not deleted", "error", err)
		}
		return false
	})
}

// purgeTiers deletes what exceeds the retention of the tiers.
func purgeTiers(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	removed, err := store.PurgeTiers(ctx)
	if removed > 0 {
		log.Info("audit rows beyond the retention of their tier deleted", "rows", removed)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("rows beyond the retention of their tier were not all deleted; retrying in an hour", "error", err)
	}
}

// purgeKeys deletes keys that ended long ago, and logs how many they were.
func purgeKeys(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	removed, err := store.PurgeKeys(ctx)
	if removed > 0 {
		log.Info("API keys that ended long ago deleted", "keys", removed)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("old API keys were not all deleted; retrying in an hour", "error", err)
	}
}

// purgeCredits deletes old grants of credits, and logs how many they were.
func purgeCredits(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	removed, err := store.PurgeCredits(ctx)
	if removed > 0 {
		log.Info("old grants of credits deleted", "grants", removed)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("old grants of credits were not all deleted; retrying in an hour", "error", err)
	}
}

// purgePeople deletes people who are no longer in a tenant, and logs how many they were.
func purgePeople(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	purged, err := store.PurgePeople(ctx)
	if purged != (tenants.PurgedPeople{}) {
		log.Info("people without a tenant deleted", "people", purged.People, "invitations", purged.Invitations)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("people without a tenant were not all deleted; retrying in an hour", "error", err)
	}
}

// purgeAudit deletes audit rows from before a time, and logs how many they were.
func purgeAudit(ctx context.Context, store *tenants.Store, before time.Time, log *slog.Logger) {
	removed, err := store.PurgeAudit(ctx, before)
	if removed > 0 {
		log.Info("old audit rows deleted", "rows", removed, "before", before)
	}
	if err != nil && ctx.Err() == nil {
		log.Warn("old audit rows were not all deleted; retrying in an hour", "error", err)
	}
}
