package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
	"weir/internal/usage"
)

// The operator creates a quota, sees before who would be over it today, and begins in shadow.
func TestNewQuota(t *testing.T) {
	s := newStack(t)
	platform, err := s.store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	s.member(operator, "olga@example.com", tenants.Admin)
	s.decided(s.a, usage.Hour, 0, "", 900, 100)
	s.decided(s.b, usage.Hour, 0, "", 85, 0)
	s.serve(s.store, testenv.RedisURL(t), func(d *Deps) { d.Platform = platform.ID })
	olga := s.as("olga@example.com")

	require.Contains(t, olga.get("/tenants/tenant-a").body, `href="/tenants/tenant-a/quota"`)
	got := olga.get("/tenants/tenant-a/quota").body
	require.Contains(t, got, "Enter the number of checks")
	require.Contains(t, got, `value="shadow" checked`)
	require.Contains(t, got, `value="one" checked`, "the page is that tenant's")
	got = olga.get("/tenants/tenant-a/quota?limit=100&window=month&scope=all&mode=shadow").body
	require.Contains(t, got, "Each tenant can send 100 checks per month.")
	require.Contains(t, got, "1 tenant is over it since 1 ")
	require.Regexp(t, `(?s)Over the quota.*tenant-a.*1,000.*Over 80 % of the quota.*tenant-b.*85`, got)
	got = olga.get("/tenants/tenant-b/quota?limit=100&window=month&scope=one&mode=enforce&fragment=effect").body
	require.Contains(t, got, "No tenant is over it")
	require.NotContains(t, got, "tenant-a")
	require.NotContains(t, got, "<html")

	post := func(form url.Values) page {
		form.Set("tenant", platform.ID.String())
		return olga.post("/tenants/tenant-a/quota", form)
	}
	got = post(url.Values{"limit": {"0"}, "window": {"year"}, "scope": {"some"}, "mode": {"off"}}).body
	for _, text := range []string{"Must be a number from 1", "Must be one of the listed options.", missingReason + "</p>", "Must be shadow or enforce"} {
		require.Contains(t, got, text)
	}
	sent := post(url.Values{"limit": {"500"}, "window": {"day"}, "scope": {"one"}, "mode": {"shadow"}, "reason": {"a trial"}})
	require.Equal(t, http.StatusSeeOther, sent.status, sent.body)
	rule, err := s.store.RuleBySlug(t.Context(), operator, "checks-per-day-of-tenant-a")
	require.NoError(t, err)
	require.Equal(t, limit.Shadow, rule.Mode)
	require.Equal(t, check.QuotaResource, rule.Resource)
	require.Equal(t, noQuota, rule.Limit, "it limits no other tenant")
	subject, err := s.store.SubjectByName(t.Context(), operator, "tenant-a")
	require.NoError(t, err)
	require.EqualValues(t, 500, subject.Overrides[0].Limit.Limit)
	s.policies.Changed(platform.ID, rule.Version, rule.Version)
	require.NoError(t, s.policies.Settle(t.Context(), platform.ID))
	got = olga.get("/tenants/tenant-a").body
	require.Contains(t, got, "Checks per day of tenant-a")
	require.Contains(t, got, "500 per day")
	require.NotContains(t, olga.get("/tenants/tenant-b").body, "Checks per day of tenant-a")
	require.NotContains(t, s.as("ann@example.com").get("/usage").body, "Checks per day of tenant-a", "it is in shadow")

	require.Equal(t, http.StatusConflict, post(url.Values{"limit": {"500"}, "window": {"day"}, "scope": {"one"}, "mode": {"shadow"}, "reason": {"again"}}).status)
	require.Equal(t, http.StatusNotFound, s.as("ann@example.com").get("/tenants/tenant-a/quota").status)
	require.Equal(t, http.StatusNotFound, olga.get("/tenants/"+tenants.PlatformSlug+"/quota").status)

	// Its counters are the quotas, so it runs no checks.
	require.Equal(t, http.StatusSeeOther, olga.get("/start").status)
	require.Equal(t, http.StatusForbidden, olga.post("/start", url.Values{"tenant": {platform.ID.String()}, "only": {"key"}}).status)
}

// The windows of quotas begin with the calendar, in UTC.
func TestQuotaWindowStart(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 15, 13, 45, 0, 0, time.UTC) // a Thursday
	for window, want := range map[string]string{"month": "2026-01-01T00:00", "week": "2026-01-12T00:00", "day": "2026-01-15T00:00", "1h": "2026-01-15T13:00"} {
		require.Equal(t, want, windowStart(window, now).Format(minuteForm), window)
	}
	require.Equal(t, "checks-per-day-of-a-b", quotaSlug("Checks per day of a.B "))
}
