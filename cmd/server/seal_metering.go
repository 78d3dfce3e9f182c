package main

import (
	"context"
	"log/slog"
	"time"

	"weir/internal/tenants"
)

const (
	sealMeteringEvery      = 5 * time.Second
	createMeterPushesEvery = 5 * time.Second
)

// sealMetering seals the hours of metered usage that all instances have written, until ctx ends.
func sealMetering(ctx context.Context, store *tenants.Store, notes *meterNotes, log *slog.Logger) {
	failing := false // an outage is logged once
	repeat(ctx, sealMeteringEvery, func() (more bool) {
		if err := notes.deliver(ctx); err != nil {
			log.DebugContext(ctx, "notes about metered units were not read", "error", err) // invoices do not wait for Redis
		}
		sealed, err := store.SealMetering(ctx)
		switch {
		case ctx.Err() != nil:
		case err != nil && !failing:
			log.Warn("cannot look whether an hour of metered usage can be sealed; retrying", "error", err)
		case sealed != nil:
			log.Info("metered usage sealed", "until", *sealed)
		}
		failing = err != nil
		return false
	})
}

// createMeterPushes creates the pushes of sealed hours, a page at a time, until ctx ends.
func createMeterPushes(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	failing := false // an outage is logged once
	repeat(ctx, createMeterPushesEvery, func() (more bool) {
		more, err := store.CreateMeterPushes(ctx, tenants.MeterPushPage)
		if err != nil && ctx.Err() == nil && !failing {
			log.Warn("cannot create what is sent to meters of providers for sealed hours; retrying", "error", err)
		}
		failing = err != nil
		return more
	})
}
