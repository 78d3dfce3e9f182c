package main

import (
	"context"
	"fmt"
	"time"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The signing secrets of the demo's billing endpoints. They protect nothing: the demo listens on
// loopback only.
const (
	demoStripeSecret = "whsec_demo_stripe_test_mode"
	demoShopSecret   = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
)

const (
	demoStripe = "Stripe, test mode"
	demoShop   = "Web shop"
)

// The prices that events of the demo name.
const (
	demoProPrice        = "price_1SWk4hProMonthly"
	demoSeatsPrice      = "price_1SWk4hProSeats"
	demoEnterprisePrice = "price_1SWk4hEnterpriseYearly"
	demoPackPrice       = "price_1SWk4hMessagePack"
	demoUnmappedPrice   = "price_1NfQ2cLaunchOffer"
)

// demoProLimits returns the limits of the newest version of the plan pro. One check of
// messages:send is counted by the second and by the month.
func demoProLimits() map[string]limit.Limit {
	return map[string]limit.Limit{
		"api-requests": {Limit: 1000}, "order-bursts": {Limit: 10, Burst: 50}, "exports": {Limit: 100},
		"message-bursts": {Limit: 10},
		"messages":       {Limit: 10_000, WarnAt: portion(0.8), Overage: limit.OverageAllow},
	}
}

// seedBilling connects two billing systems, whose events sendDemoEvents sends, and creates what
// billing needs: prices, credits, a scheduled change of a plan, and a new version of a plan to
// which subjects are being migrated.
func seedBilling(ctx context.Context, store *tenants.Store, actor tenants.Actor, now time.Time) error {
	if !store.CanSeal() {
		return nil // the demo always has a key, unless an operator removed it
	}
	stripe, err := store.CreateBillingEndpoint(ctx, actor, tenants.BillingEndpoint{
		Provider: tenants.StripeProvider, Name: demoStripe, SubjectFrom: tenants.FromMetadata + "user_id", GraceDays: 7, FallbackPlan: "free",
	}, tenants.BillingSecrets{Signing: []string{demoStripeSecret}})
	if err != nil {
		return fmt.Errorf("billing endpoint: %w", err)
	}
	if _, err := store.CreateBillingEndpoint(ctx, actor, tenants.BillingEndpoint{
		Provider: tenants.GenericProvider, Name: demoShop, SubjectFrom: tenants.FromCustomer,
	}, tenants.BillingSecrets{Signing: []string{demoShopSecret}}); err != nil {
		return fmt.Errorf("billing endpoint: %w", err)
	}
	for _, price := range []tenants.BillingPrice{
		{Price: demoProPrice, Plan: "pro"},
		{Price: demoSeatsPrice, Plan: "pro", Multiply: true, Priority: 5},
		{Price: demoEnterprisePrice, Plan: "enterprise", Priority: 10},
		{Price: demoPackPrice, Credits: &tenants.PriceCredits{Rule: "messages", Units: 2_000, ExpiresDays: 365}},
	} {
		price.Endpoint = stripe.ID
		if _, _, err := store.PutBillingPrice(ctx, actor, price, tenants.Match{}); err != nil {
			return fmt.Errorf("price %s: %w", price.Price, err)
		}
	}
	expires := now.AddDate(0, 0, 20).Truncate(time.Hour)
	if _, _, err := store.GrantCredits(ctx, actor, "globex", tenants.NewCredits{
		Rule: "messages", Units: 500, ExpiresAt: &expires, Reference: "goodwill-2211", Reason: "For the outage of last week",
	}); err != nil {
		return fmt.Errorf("credits: %w", err)
	}
	return seedPlanChanges(ctx, store, actor, now)
}

// seedPlanChanges schedules the change of a subject, and publishes a version of a plan to which
// subjects are migrated at the end of their cycles.
func seedPlanChanges(ctx context.Context, store *tenants.Store, actor tenants.Actor, now time.Time) error {
	later := tenants.CycleEnd(nil, now)
	vandelay, err := store.SubjectByName(ctx, actor, "vandelay")
	if err != nil {
		return fmt.Errorf("scheduled plan: %w", err)
	}
	vandelay.NextPlan, vandelay.NextPlanAt, vandelay.NextPlanAtCycleEnd = "pro", &later, true
	if _, _, err := store.PutSubject(ctx, actor, vandelay, tenants.Match{}); err != nil {
		return fmt.Errorf("scheduled plan: %w", err)
	}
	if _, err := store.PublishPlan(ctx, actor, "pro", demoProLimits(), tenants.Match{}); err != nil {
		return fmt.Errorf("plan version: %w", err)
	}
	if _, err := store.CreatePlanMigration(ctx, actor, tenants.NewPlanMigration{Plan: "pro", AtCycleEnd: true}); err != nil {
		return fmt.Errorf("plan migration: %w", err)
	}
	return nil
}
