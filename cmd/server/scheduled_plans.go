package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/tenants"
)

// applyDuePlansEvery is the maximum delay of a scheduled change of a plan.
const applyDuePlansEvery = time.Second

// applyDuePlans gives subjects the plans that are due, until ctx ends.
func applyDuePlans(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	repeat(ctx, applyDuePlansEvery, func() (more bool) {
		applied, more, err := store.ApplyDuePlans(ctx)
		if applied > 0 {
			log.Info("scheduled plan changes applied", "subjects", applied)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("some scheduled plan changes failed; retrying", "error", err)
		}
		return more
	})
}

// changeCounters changes the counters of subjects with a new plan as the plan says, until ctx ends.
func changeCounters(ctx context.Context, store *tenants.Store, policies *check.Policies, checker *check.Checker, log *slog.Logger) {
	changes := store.CounterChanges(func(tenant uuid.UUID, c check.CounterChange) error {
		policy, err := policies.Get(ctx, tenant) // few are read at once
		if err != nil {
			return err
		}
		if plan := policy.Unknown(&c); plan != "" {
			log.Warn("usage not scaled, because the limits of a plan are unknown", "tenant", tenant, "change", c.ID, "plan", plan)
		}
		return checker.Amend(ctx, policy, c)
	})
	changes.Run(ctx, applyDuePlansEvery, func(err error) {
		log.Warn("not all counters of subjects with a new plan changed; retrying", "error", err)
	})
}

// runPlanMigrations changes the plans of subjects in running migrations, until ctx ends.
func runPlanMigrations(ctx context.Context, store *tenants.Store, log *slog.Logger) {
	repeat(ctx, applyDuePlansEvery, func() (more bool) {
		moved, more, err := store.RunPlanMigrations(ctx)
		if moved > 0 {
			log.Info("subjects migrated", "subjects", moved)
		}
		if err != nil && ctx.Err() == nil {
			log.Warn("plan migrations failed; retrying", "error", err)
		}
		return more
	})
}
