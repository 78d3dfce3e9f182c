package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// A tenant sees its usage of its quota and when the quota runs out, and so does the operator. A
// tenant without a tier sees no quota.
func TestQuotaUse(t *testing.T) {
	s := newStack(t)
	platform, err := s.store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.store.ProposeTiers(t.Context(), platform))
	operator := tenants.AsSystem(platform.ID, "test")
	s.member(operator, "olga@example.com", tenants.Admin)
	_, _, err = s.store.PutSubject(t.Context(), operator, tenants.Subject{Subject: "tenant-a", Plan: "free"}, tenants.Match{})
	require.NoError(t, err)
	own := tenants.Override{Rule: tenants.ChecksPerMonth, Limit: limit.Limit{Limit: 100}, Reason: "a trial"}
	_, _, err = s.store.PutOverride(t.Context(), operator, "tenant-a", own, tenants.Match{})
	require.NoError(t, err)
	s.serve(s.store, testenv.RedisURL(t), func(d *Deps) { d.Platform = platform.ID })

	policy, err := s.policies.Get(t.Context(), platform.ID)
	require.NoError(t, err)
	_, err = s.checker.Check(t.Context(), policy, []check.Request{{Subject: "tenant-a", Resource: check.QuotaResource, Cost: 90}})
	require.NoError(t, err)
	page := s.as("ann@example.com").get("/usage").body
	require.Contains(t, page, `<strong>Checks per month</strong> <span class="count">90 of 100 checks used`)
	require.Contains(t, page, "Resets on ")
	require.NotContains(t, page, "Checks per second", "a second is too short to show")
	require.NotContains(t, s.as("bob@example.com").get("/usage").body, "checks used")
	page = s.as("olga@example.com").get("/tenants/tenant-a").body
	require.Contains(t, page, "90 of 100")
	require.Equal(t, 1, strings.Count(page, `<a class="cut" href="/rules/`+tenants.ChecksPerMonth+`"`), "each quota has one line")
	require.NotContains(t, page, "90 of 100 checks used", "as the usage page says")
	require.Contains(t, page, "Checks per month: ", "with its forecast")

	home := s.as("olga@example.com").get("/").body
	require.Regexp(t, `Nearest to their quota[^§]*href="/tenants/tenant-a"[^§]*Checks per month[^§]*90 %`, home)
	require.NotContains(t, home, `href="/tenants/tenant-b">`, "it has used nothing")

	require.NotContains(t, s.as("ann@example.com").get("/").body, "is used.")
	end := time.Now().Add(48 * time.Hour)
	_, err = s.store.RecordQuota(t.Context(), s.a.TenantID(), tenants.ChecksPerMonth, end, 96, 100)
	require.NoError(t, err)
	page = s.as("ann@example.com").get("/").body
	require.Contains(t, page, "95 % of the quota Checks per month (100 checks) is used.")
	require.NotContains(t, page, "80 % of the quota", "only the greatest share is shown")
	require.NotContains(t, s.as("bob@example.com").get("/").body, "of the quota")
}

// A tenant whose tier lets checks pass beyond the quota is not said to be denied.
func TestQuotaOfTierThatFailsOpen(t *testing.T) {
	s := newStack(t)
	platform, err := s.store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	require.NoError(t, s.store.ProposeTiers(t.Context(), platform))
	operator := tenants.AsSystem(platform.ID, "test")
	s.member(operator, "olga@example.com", tenants.Admin)
	for slug, tier := range map[string]string{"tenant-a": "free", "tenant-b": "scale"} { // scale fails open
		_, _, err = s.store.PutSubject(t.Context(), operator, tenants.Subject{Subject: slug, Plan: tier}, tenants.Match{})
		require.NoError(t, err)
		own := tenants.Override{Rule: tenants.ChecksPerMonth, Limit: limit.Limit{Limit: 10}, Reason: "a trial"}
		_, _, err = s.store.PutOverride(t.Context(), operator, slug, own, tenants.Match{})
		require.NoError(t, err)
	}
	s.serve(s.store, testenv.RedisURL(t), func(d *Deps) { d.Platform = platform.ID })
	policy, err := s.policies.Get(t.Context(), platform.ID)
	require.NoError(t, err)
	for _, slug := range []string{"tenant-a", "tenant-b"} {
		_, err = s.checker.Check(t.Context(), policy, []check.Request{{Subject: slug, Resource: check.QuotaResource, Cost: 10}})
		require.NoError(t, err)
	}
	page := s.as("olga@example.com").get("/tenants/tenant-a").body
	require.Contains(t, page, "Denying for ")
	require.Contains(t, page, "The quota is used up. Resets on")
	page = s.as("olga@example.com").get("/tenants/tenant-b").body
	require.NotContains(t, page, "Denying")
	require.Contains(t, page, "Used up, checks pass")
	require.Contains(t, page, "The quota is used up. The tier lets further checks pass.")
}

// The text matches the numbers.
func TestQuotaForecast(t *testing.T) {
	now := time.Date(2026, 1, 11, 0, 0, 0, 0, time.UTC)
	end := time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)
	r := limit.NewRule("checks")
	for used, want := range map[int64][2]string{
		0: {"No checks in this window.", ""}, 5: {"At the current rate it lasts until it resets.", ""},
		50: {"At the current rate it runs out on 21 January 2026.", "warn"}, 99: {"At the current rate it runs out on 11 January 02:25 UTC.", "warn"},
		100: {"The quota is used up.", "bad"}, 130: {"The quota is used up.", "bad"},
	} {
		const day = 24 * time.Hour
		line := quotaLineOf(&check.QuotaUse{Rule: &r, Used: used, Limit: 100, WindowEnd: end, Length: 31 * day, Elapsed: 10 * day}, now)
		require.Equal(t, want, [2]string{line.Forecast, line.Tone}, used)
		require.LessOrEqual(t, line.Permille, int64(1000))
	}
	line := quotaLineOf(&check.QuotaUse{Rule: &r, Used: 130, Limit: 100, WindowEnd: end, FailOpen: true}, now)
	require.Equal(t, [2]string{"The quota is used up. The tier lets further checks pass.", "warn"}, [2]string{line.Forecast, line.Tone})
}
