package main

import (
	"context"
	"log/slog"
	"time"

	"weir/internal/check"
	"weir/internal/dashboard"
	"weir/internal/limit"
)

// warnOfSignupTier warns, once, if everybody can create tenants and what they get has no bound of
// counters: each may fill a part of Redis then. It also warns if there is no such tier.
func warnOfSignupTier(ctx context.Context, cfg *Config, policies *check.Policies, platform limit.TenantID, log *slog.Logger) {
	if dashboard.Signup(cfg.Signup) == dashboard.SignupClosed {
		return
	}
	policy, err := policies.Get(ctx, platform)
	for ; err != nil; policy, err = policies.Get(ctx, platform) {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
	counters, known := policy.PlanCounters(cfg.SignupTier)
	switch {
	case !known:
		log.WarnContext(ctx, "WEIR_SIGNUP_TIER is not a plan of the operator's tenant: nobody can sign up until it is", "plan", cfg.SignupTier)
	case counters == 0 && dashboard.Signup(cfg.Signup) == dashboard.SignupOpen:
		log.WarnContext(ctx, "WEIR_SIGNUP is open, and the tier of sign-ups has no bound of counters; set WEIR_SIGNUP_TIER to one that has, as free, or give the default plan of the operator's tenant the bound counters",
			"plan", cfg.SignupTier, "counters", cfg.TenantCounters)
	}
}
