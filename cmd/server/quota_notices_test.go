package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// When a tenant has used 80, 95 and 100 % of a quota, its owners and admins get one mail each, from
// one of the instances, and its endpoints get a notification.
func TestQuotaMails(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 6, 15, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	d := tenantstest.NewWith(t, tenants.Config{Now: clock})
	ctx := t.Context()
	platform, err := d.Store.EnsurePlatform(ctx)
	require.NoError(t, err)
	a, _ := d.Tenant("acme")
	for email, role := range map[string]tenants.Role{"ann@example.com": tenants.Owner, "bob@example.com": tenants.Admin, "eve@example.com": tenants.Editor} {
		_, err := d.Store.CreateMember(ctx, a, email, "correct horse", role)
		require.NoError(t, err)
	}
	_, err = d.Store.InviteMember(ctx, a, "zoe@example.com", tenants.Owner) // who has not joined
	require.NoError(t, err)
	_, _, err = d.Store.CreateNotificationEndpoint(ctx, a, tenants.NotificationEndpoint{URL: "https://example.com/weir", Enabled: true})
	require.NoError(t, err)
	rule := limit.NewRule("checks-a-month")
	rule.Name, rule.Resource, rule.Algorithm, rule.Limit = "Checks of a month", check.QuotaResource, limit.FixedWindow, 100
	rule.Window = limit.Window{Duration: limit.Duration{Text: "month"}, Calendar: limit.CalendarMonth}
	operator := tenants.AsSystem(platform.ID, "test")
	_, err = d.Store.CreateRule(ctx, operator, rule)
	require.NoError(t, err)
	_, _, err = d.Store.PutSubject(ctx, operator, tenants.Subject{Subject: "acme"}, tenants.Match{})
	require.NoError(t, err)

	keys := check.NewKeys([16]byte{1})
	parts := checktest.New(t, checktest.Options{Keys: keys, Clock: clock})
	box := &mail.Box{}
	post, err := mail.NewPost(mail.Options{Box: box, PublicURL: "https://weir.example", Logger: slog.New(slog.DiscardHandler), Now: clock})
	require.NoError(t, err)
	instance := func() *quotaNotices {
		log := slog.New(slog.DiscardHandler)
		policies := check.NewPolicies(d.Open(tenants.Config{Now: clock}), keys, log, parts.Metrics)
		t.Cleanup(policies.Close)
		return &quotaNotices{store: d.Store, policies: policies, checker: parts.Checker, platform: platform.ID, post: post, log: log}
	}
	one, two := instance(), instance()
	use := func(units int64) {
		t.Helper()
		policy, err := one.policies.Get(ctx, platform.ID)
		require.NoError(t, err)
		decisions, err := parts.Checker.Check(ctx, policy, []check.Request{{Subject: "acme", Resource: check.QuotaResource, Cost: units}})
		require.NoError(t, err)
		require.True(t, decisions[0].Allowed)
		for range 2 {
			require.NoError(t, one.once(ctx))
			require.NoError(t, two.once(ctx))
		}
	}
	use(79)
	use(1)
	use(19) // 95 % was passed, too, and 99 % says no more
	use(1)
	ended, end := context.WithCancel(ctx)
	end()
	post.Run(ended) // sends what waits
	var got []string
	for _, l := range box.Letters() {
		got = append(got, l.To+": "+l.Subject)
		require.Equal(t, "https://weir.example/usage", l.Link.URL)
	}
	slices.Sort(got)
	require.Equal(t, []string{
		"ann@example.com: acme has used 100 % of a quota", "ann@example.com: acme has used 80 % of a quota", "ann@example.com: acme has used 95 % of a quota",
		"bob@example.com: acme has used 100 % of a quota", "bob@example.com: acme has used 80 % of a quota", "bob@example.com: acme has used 95 % of a quota",
	}, got)
	last := box.Letters()[0]
	require.Contains(t, last.Before[0], "The tenant acme has used 100 of 100 checks of the quota Checks of a month. It resets on 1 July 2026, 00:00 UTC.")
	list, _, err := d.Store.NotificationDeliveries(ctx, a, tenants.DeliveryFilter{Type: tenants.QuotaReached}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list, 3)
}

// A tenant that has more than its tier includes gets one mail, and another one only after it has
// fitted.
func TestTierMails(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	ctx := t.Context()
	platform, err := d.Store.EnsurePlatform(ctx)
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	a, _ := d.Tenant("acme")
	_, err = d.Store.CreateMember(ctx, a, "ann@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	for _, slug := range []string{"one", "two"} {
		rule := limit.NewRule(slug)
		rule.Limit, rule.Window = 5, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
		_, err := d.Store.CreateRule(ctx, a, rule)
		require.NoError(t, err)
	}
	_, err = d.Store.CreatePlan(ctx, operator, tenants.Plan{Slug: "large", Bounds: tenants.Bounds{Rules: 2, Members: 9}})
	require.NoError(t, err)
	_, err = d.Store.CreatePlan(ctx, operator, tenants.Plan{Slug: "small", Bounds: tenants.Bounds{Rules: 1, Members: 9}})
	require.NoError(t, err)
	box := &mail.Box{}
	post, err := mail.NewPost(mail.Options{Box: box, PublicURL: "https://weir.example", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	n := &quotaNotices{store: d.Store, platform: platform.ID, post: post, log: slog.New(slog.DiscardHandler)}
	for _, tier := range []string{"large", "small", "large", "small"} {
		_, _, err := d.Store.PutSubject(ctx, operator, tenants.Subject{Subject: "acme", Plan: tier}, tenants.Match{})
		require.NoError(t, err)
		for range 2 { // instances
			require.NoError(t, n.compareTiers(ctx))
		}
	}
	ended, end := context.WithCancel(ctx)
	end()
	post.Run(ended) // sends what waits
	letters := box.Letters()
	require.Len(t, letters, 2, "once for each time that the tier became too small")
	for _, l := range letters {
		require.Equal(t, "ann@example.com", l.To)
		require.Equal(t, "acme has more than its tier includes", l.Subject)
		require.Equal(t, "The tier small includes less than the tenant acme has: 2 of 1 rules.", l.Before[0])
		require.Equal(t, "https://weir.example/usage", l.Link.URL)
	}
}

// Tenants that fail keep nobody's notices: only many in a row end a round, and the next one
// continues behind them.
func TestQuotaRoundsContinue(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	ctx := t.Context()
	platform, err := d.Store.EnsurePlatform(ctx)
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	_, err = d.Store.CreatePlan(ctx, operator, tenants.Plan{Slug: "small", Bounds: tenants.Bounds{Rules: 1}})
	require.NoError(t, err)
	const most = 2*mostNoticeErrors + 2
	for i := range most {
		slug := fmt.Sprintf("tenant-%02d", i)
		d.Tenant(slug)
		_, _, err := d.Store.PutSubject(ctx, operator, tenants.Subject{Subject: slug, Plan: "small"}, tenants.Match{})
		require.NoError(t, err)
	}
	n := &quotaNotices{store: d.Store, platform: platform.ID, log: slog.New(slog.DiscardHandler)}
	after := ""
	round := func(fails func(i int) bool) (visited int, first string) {
		_ = n.each(ctx, &after, func(t tenants.TenantInTier) error {
			if visited++; visited == 1 {
				first = t.Slug
			}
			if fails(visited) {
				return errors.New("locked")
			}
			return nil
		})
		return visited, first
	}
	for _, test := range []struct {
		fails   func(i int) bool
		visited int
		first   string
	}{
		{func(i int) bool { return i%2 == 0 }, most, "tenant-00"},
		{func(int) bool { return true }, mostNoticeErrors, "tenant-00"},
		{func(int) bool { return false }, most - mostNoticeErrors, "tenant-10"},
		{func(int) bool { return false }, most, "tenant-00"},
	} {
		visited, first := round(test.fails)
		require.Equal(t, test.visited, visited)
		require.Equal(t, test.first, first)
	}
}

// The people who run a tenant are mailed when billing events were not applied, with the number and
// the page that says why.
func TestBillingNotices(t *testing.T) {
	d := tenantstest.New(t)
	ctx := t.Context()
	a, _ := d.Tenant("acme")
	_, err := d.Store.CreateMember(ctx, a, "ann@example.com", "correct horse", tenants.Owner)
	require.NoError(t, err)
	box := &mail.Box{}
	post, err := mail.NewPost(mail.Options{Box: box, PublicURL: "https://weir.example", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	n := &quotaNotices{store: d.Store, post: post, log: slog.New(slog.DiscardHandler)}
	n.billing(ctx, tenants.BillingNotice{Tenant: a.TenantID(), Provider: "stripe", Parked: 2, Failed: 1})
	n.billing(ctx, tenants.BillingNotice{Tenant: a.TenantID(), Provider: "stripe"}) // settled
	ended, end := context.WithCancel(ctx)
	end()
	post.Run(ended) // sends what waits
	letters := box.Letters()
	require.Len(t, letters, 1)
	require.Equal(t, "ann@example.com", letters[0].To)
	require.Equal(t, "acme: billing events were not applied", letters[0].Subject)
	require.Contains(t, letters[0].Before[0], "endpoint stripe of the tenant acme: 2 parked, 1 failed.")
	require.Equal(t, "https://weir.example/billing/events", letters[0].Link.URL)
}
