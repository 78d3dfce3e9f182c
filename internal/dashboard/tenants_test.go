package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/testenv"
	"weir/internal/usage"
)

// operated is a stack with the operator Olga, an admin of the platform tenant, and her browser.
type operated struct {
	*stack
	olga     *browser
	platform tenants.Actor
}

func newOperated(t *testing.T) *operated {
	s := newStack(t)
	platform, err := s.store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	o := &operated{stack: s, platform: tenants.AsSystem(platform.ID, "test")}
	s.member(o.platform, "olga@example.com", tenants.Admin)
	s.serve(s.store, testenv.RedisURL(t), func(d *Deps) {
		d.Follow = func(ctx context.Context, tenant limit.TenantID) {
			change, err := s.store.Versions(ctx, tenant)
			if err != nil {
				return // it was deleted
			}
			s.policies.Changed(tenant, change.PolicyVersion, change.SubjectsVersion)
			require.NoError(t, s.policies.Settle(ctx, tenant))
		}
	})
	o.olga = s.as("olga@example.com")
	return o
}

// quota creates the tiers basic (the default, 100 checks per minute) and gold (1000).
func (o *operated) quota() {
	o.t.Helper()
	window, err := limit.ParseWindow("1m")
	require.NoError(o.t, err)
	_, err = o.store.CreateRule(o.t.Context(), o.platform, limit.Rule{
		Slug: "checks", Name: "Checks per tenant", Resource: check.QuotaResource, Algorithm: limit.FixedWindow, Limit: 50, Window: window, By: []string{"subject"},
	})
	require.NoError(o.t, err)
	for slug, lim := range map[string]int64{"basic": 100, "gold": 1000} {
		_, err := o.store.CreatePlan(o.t.Context(), o.platform, tenants.Plan{
			Slug: slug, Name: "Tier " + slug, Default: slug == "basic", Limits: map[string]limit.Limit{"checks": {Limit: lim}},
		})
		require.NoError(o.t, err)
	}
}

// send sends a form of the operator's own tenant.
func (o *operated) send(path string, pairs ...string) page {
	return o.olga.post(path, o.inTenant(o.platform, pairs...))
}

// Only the operator may know that there are other tenants.
func TestTenantsAreTheOperators(t *testing.T) {
	s := newOperated(t)
	s.staff()
	s.member(s.platform, "eve@example.com", tenants.Editor)
	s.member(s.a, "olga@example.com", tenants.Owner)
	s.olga = s.as("olga@example.com")
	eve := s.as("eve@example.com")
	for _, path := range []string{"/tenants", "/tenants/tenant-a", "/tenants/platform", "/instances", "/instances?fragment=list"} {
		require.Equal(t, http.StatusOK, s.olga.get(path).status, path)
		checkHeaders(t, s.olga.get(path), path)
		for _, role := range tenants.Roles {
			b := s.as(string(role) + "@example.com")
			got := b.get(path)
			require.Equal(t, http.StatusNotFound, got.status, "%s, %s", role, path)
			require.NotContains(t, got.body, `href="/tenants`, role)
			form := url.Values{"do": {"suspend"}, "slug": {"new"}, "reason": {"x"}}
			if strings.HasPrefix(path, "/tenants") {
				require.Equal(t, http.StatusNotFound, b.write(path, form).status, "%s, %s", role, path)
			}
		}
		require.Equal(t, http.StatusNotFound, eve.get(path).status, "an editor of the platform tenant is not an operator")
		if strings.HasPrefix(path, "/instances") {
			continue // nothing is written there
		}
		require.Equal(t, http.StatusNotFound, eve.post(path, s.inTenant(s.platform, "do", "suspend", "slug", "new", "reason", "x")).status)
		require.Equal(t, http.StatusSeeOther, s.browser().get(path).status)
	}
	require.Contains(t, s.olga.get("/search?q=tenants").body, `href="/tenants"`)

	// In another tenant, the operator is an ordinary member.
	require.Equal(t, http.StatusConflict, s.olga.write("/tenants", url.Values{"slug": {"new"}}).status, "a form of another tenant")
	require.Equal(t, http.StatusSeeOther, s.olga.post("/tenant", url.Values{"tenant": {s.a.TenantID().String()}}).status)
	require.Equal(t, http.StatusNotFound, s.olga.get("/tenants").status)
	list, _, err := s.store.ListTenants(t.Context(), tenants.AsOperator("test"), tenants.TenantFilter{State: tenants.TenantActive}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, list, 3, "nothing was created or suspended")
}

// A new tenant's key works immediately, and is shown only on that page.
func TestCreateTenant(t *testing.T) {
	s := newOperated(t)
	s.quota()
	got := s.send("/tenants", "slug", "acme", "name", "Acme <b>Inc.", "tier", "gold")
	require.Equal(t, http.StatusOK, got.status, got.body)
	checkHeaders(t, page{got.status, withoutNoTransform(got.header), got.body}, "/tenants")
	require.Contains(t, got.header.Get("Cache-Control"), "no-transform")
	require.Contains(t, got.body, "Acme &lt;b&gt;Inc.")
	require.Contains(t, got.body, `href="/tenants/acme"`)
	found := secretPattern.FindStringSubmatch(got.body)
	require.NotNil(t, found)
	actor, err := tenants.NewAuthenticator(s.store).Authenticate(t.Context(), found[1])
	require.NoError(t, err)
	tenant, err := s.store.Tenant(t.Context(), actor)
	require.NoError(t, err)
	require.Equal(t, "acme", tenant.Slug)
	for _, later := range []string{"/tenants", "/tenants/acme", "/audit", "/"} {
		body := s.olga.get(later).body
		require.NotContains(t, body, found[1], later)
	}
	require.Contains(t, s.olga.get("/tenants?q=ACM").body, "Tier gold")
	require.NotContains(t, s.olga.get("/tenants?q=ACM").body, "tenant-b")
	rows, _, err := s.store.Audit(t.Context(), s.platform, tenants.AuditFilter{Kind: "tenant"}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "olga@example.com", rows[0].ActorName)
	require.NotContains(t, string(rows[0].After), found[1])

	for want, form := range map[string]url.Values{
		"Must be 1 to 63 of":                       {"slug": {"No Slug"}, "name": {"kept"}},
		"Is reserved for the operator":             {"slug": {"platform"}, "name": {"kept"}},
		"Must be one of the plans of the operator": {"slug": {"other"}, "name": {"kept"}, "tier": {"none"}},
		"Must be at most 200":                      {"slug": {"other"}, "name": {"kept" + string(make([]byte, 300))}},
	} {
		form.Set("tenant", s.platform.TenantID().String())
		got := s.olga.post("/tenants", form)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, want)
		require.Contains(t, got.body, want)
		require.Contains(t, got.body, `aria-invalid="true"`, want)
		require.Contains(t, got.body, `value="kept`, want)
	}
	got = s.send("/tenants", "slug", "acme")
	require.Equal(t, http.StatusConflict, got.status)
	require.Nil(t, secretPattern.FindStringSubmatch(got.body))
	_, err = s.store.TenantBySlugOrID(t.Context(), tenants.AsOperator("test"), "other")
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// An operator's change of a tenant takes effect immediately, and is in both trails.
func TestTenantActions(t *testing.T) {
	s := newOperated(t)
	s.quota()
	s.fill(s.b, "secret")
	bob := s.as("bob@example.com")
	tenant := func() tenants.Tenant {
		t.Helper()
		got, err := s.store.TenantBySlugOrID(t.Context(), tenants.AsOperator("test"), "tenant-b")
		require.NoError(t, err)
		return got
	}
	quota := func() int64 {
		t.Helper()
		policy, err := s.policies.Get(t.Context(), s.platform.TenantID())
		require.NoError(t, err)
		return s.checker.Inspect(t.Context(), policy, check.Request{Subject: "tenant-b", Resource: check.QuotaResource}).Rules[0].Limit
	}
	got := s.olga.get("/tenants/tenant-b")
	require.Contains(t, got.body, "bob@example.com")
	require.Contains(t, got.body, "2 rules, 1 plan, 1 registered subject, 2 active API keys")
	require.Contains(t, got.body, "(the default)")
	require.Contains(t, got.body, "0 of 100 used")
	require.NotContains(t, got.body, "secret", "the operator does not see the contents of a tenant")

	for _, step := range []struct {
		do    string
		form  []string
		check func()
	}{
		{"tier", []string{"plan", "gold"}, func() { require.Equal(t, int64(1000), quota()) }},
		{"quota", []string{"rule", "checks", "limit", "7 000", "expires_at", "2099-01-01T00:00"}, func() {
			require.Equal(t, int64(7000), quota())
			require.Contains(t, s.olga.get("/tenants/tenant-b").body, "1 Jan 2099")
		}},
		{"unquota", []string{"rule", "checks"}, func() { require.Equal(t, int64(1000), quota()) }},
		{"suspend", []string{"version", itoa(tenant().Version)}, func() {
			require.Equal(t, tenants.TenantSuspended, tenant().State)
			require.Equal(t, http.StatusForbidden, bob.get("/rules").status)
			require.Contains(t, s.olga.get("/tenants?state=suspended").body, "tenant-b")
		}},
		{"reopen", nil, func() { require.Equal(t, http.StatusOK, bob.get("/rules").status) }},
	} {
		form := append([]string{"do", step.do}, step.form...)
		got := s.send("/tenants/tenant-b", form...)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, "%s without a reason", step.do)
		require.Contains(t, got.body, missingReason+"</p>", step.do)
		got = s.send("/tenants/tenant-b", append(form, "reason", "because "+step.do)...)
		require.Equal(t, http.StatusSeeOther, got.status, "%s: %s", step.do, got.body)
		require.Equal(t, "/tenants/tenant-b", got.header.Get("Location"))
		step.check()
		rows, _, err := s.store.Audit(t.Context(), s.platform, tenants.AuditFilter{}, tenants.Page{Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "because "+step.do, rows[0].Reason)
		require.Equal(t, "olga@example.com", rows[0].ActorName)
	}
	rows, _, err := s.store.Audit(t.Context(), s.b, tenants.AuditFilter{Kind: "tenant"}, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, "operator", rows[0].ActorName, "the tenant does not see the person")

	require.Equal(t, http.StatusSeeOther, s.send("/tenants/tenant-b", "do", "rename", "name", "B & Co.").status)
	require.NotContains(t, s.olga.get("/tenants/tenant-b").body, "<dt>Partitions</dt>")
	require.Equal(t, http.StatusSeeOther, s.send("/tenants/tenant-b", "do", "partitions", "partitions", "16", "reason", "grows").status)
	require.Contains(t, s.olga.get("/tenants/tenant-b").body, "<dt>Partitions</dt><dd>16</dd>")
	require.Contains(t, s.olga.get("/tenants/tenant-b").body, "B &amp; Co.")

	got = s.send("/tenants/tenant-b", "do", "delete", "reason", "gone", "slug", "tenant-a")
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Must be tenant-b")
	got = s.send("/tenants/tenant-b", "do", "delete", "reason", "gone", "slug", "tenant-b")
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Equal(t, "/tenants", got.header.Get("Location"))
	require.Contains(t, s.olga.get("/tenants").body, "Tenant tenant-b deleted")
	require.Equal(t, http.StatusNotFound, s.olga.get("/tenants/tenant-b").status)
	require.Equal(t, http.StatusNotFound, s.send("/tenants/tenant-b", "do", "reopen", "reason", "x").status)
}

// An invalid action is refused with the reason, and changes nothing.
func TestTenantActionsRefuse(t *testing.T) {
	s := newOperated(t)
	s.quota()
	for _, do := range []string{"suspend", "delete"} {
		got := s.send("/tenants/platform", "do", do, "reason", "x", "slug", "platform")
		require.Equal(t, http.StatusConflict, got.status, do)
	}
	for _, do := range []string{"tier", "quota", "unquota"} {
		require.Equal(t, http.StatusUnprocessableEntity, s.send("/tenants/platform", "do", do, "reason", "x").status, do)
	}
	require.NotContains(t, s.olga.get("/tenants/platform").body, "Delete tenant permanently")
	require.Equal(t, http.StatusBadRequest, s.send("/tenants/tenant-b", "do", "nothing", "reason", "x").status)
	for want, form := range map[string][]string{
		"Must be a whole number":        {"do", "quota", "rule", "checks", "limit", "many"},
		"Must be one of the tenant":     {"do", "quota", "rule", "none", "limit", "5"},
		"Must be in the future":         {"do", "quota", "rule", "checks", "limit", "5", "expires_at", "2001-01-01T00:00"},
		"Must be a whole number from 1": {"do", "partitions", "partitions", "65"},
		"Must be at most 200":           {"do", "rename", "name", string(make([]byte, 300))},
		"Names no plan of this tenant":  {"do", "tier", "plan", "none"},
		"Must be ":                      {"do", "delete", "slug", ""},
	} {
		got := s.send("/tenants/tenant-b", append(form, "reason", "kept")...)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, want)
		require.Contains(t, got.body, want)
		checkHeaders(t, got, want)
	}
	for _, do := range []string{"rename", "suspend", "delete"} {
		got := s.send("/tenants/tenant-b", "do", do, "reason", "x", "name", "mine", "slug", "tenant-b", "version", "1")
		require.Equal(t, http.StatusPreconditionFailed, got.status, do)
		require.Contains(t, got.body, "Somebody else changed this", do)
	}
	got, err := s.store.TenantBySlugOrID(t.Context(), tenants.AsOperator("test"), "tenant-b")
	require.NoError(t, err)
	require.Equal(t, tenants.TenantActive, got.State)

	for path, want := range map[string]int{
		"/tenants/none": 404, "/tenants/%00": 404, "/tenants?state=gone": 400, "/tenants?q=%00": 400, "/tenants?after=1": 400, "/tenants/tenant-a?period=1y": 400,
	} {
		require.Equal(t, want, s.olga.get(path).status, path)
	}
	require.Contains(t, s.olga.get("/tenants?q=nobody").body, "No tenants found")
}

// The usage is that of the tenant, not of the operator's own.
func TestTenantUsage(t *testing.T) {
	s := newOperated(t)
	const script = `"><script>alert(1)</script>`
	_, err := s.store.EditTenantByRef(t.Context(), tenants.AsOperator("test"), "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error {
		in.Name = script
		return nil
	})
	require.NoError(t, err)
	for _, rule := range []string{"", "requests"} {
		s.decided(s.a, usage.Hour, 0, rule, 4321, 17)
		s.decided(s.a, usage.Day, 0, rule, 4321, 17)
	}
	for _, path := range []string{"/tenants", "/tenants/tenant-a", "/tenants/tenant-a?period=30d"} {
		got := s.olga.get(path)
		require.Contains(t, got.body, grouped(4321), path)
		require.Contains(t, got.body, "17", path)
		require.NotContains(t, got.body, "<script>alert", path)
	}
	require.NotContains(t, s.olga.get("/tenants/tenant-b").body, grouped(4321))
	require.Contains(t, s.olga.get("/tenants/tenant-b").body, "No quota limits the checks")
	require.Contains(t, s.olga.get("/tenants/tenant-b").body, "No checks in this period.")
	require.Equal(t, http.StatusOK, s.olga.get("/tenants/tenant-b/quota").status)
}

// Without Postgres nothing is changed, and the page says what is unavailable.
func TestTenantsDuringOutage(t *testing.T) {
	s := newOperated(t)
	token := s.olga.token()
	away := s.db.Open(tenants.Config{DatabaseURL: "postgres://x:y@127.0.0.1:1/z?sslmode=disable"})
	s.serve(away, "redis://127.0.0.1:1")
	for _, r := range []*http.Request{
		s.browser().request(http.MethodGet, "/tenants", nil),
		s.browser().request(http.MethodPost, "/tenants", s.inTenant(s.platform, "slug", "acme")),
		s.browser().request(http.MethodPost, "/tenants/tenant-a", s.inTenant(s.platform, "do", "suspend", "reason", "x")),
	} {
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: token})
		got := s.browser().send(r)
		require.Equal(t, http.StatusServiceUnavailable, got.status)
		require.Contains(t, got.body, "Configuration unavailable")
	}
	_, err := s.db.Store.TenantBySlugOrID(t.Context(), tenants.AsOperator("test"), "acme")
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// An instance that has lost a server is shown differently.
func TestInstanceRows(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	well := recent.Instance{
		Name: "web-1", Version: "v1.2.3", StartedAt: now.Add(-3 * time.Hour), ConfigAge: time.Second, This: true,
		Latency: check.Latency{Checks: 12345, P50: 80 * time.Microsecond, P99: 2 * time.Millisecond},
	}
	row := instanceRowOf(&well, now)
	require.Equal(t, instanceRow{
		Name: "web-1", Version: "v1.2.3", This: true, Started: moment{well.StartedAt}, Up: "3 hours", Counters: "available", CountersTone: "good",
		Config: "up to date", ConfigTone: "good", Checks: grouped(12345), Half: "80 µs", Nearly: "2.0 ms",
	}, row)
	ill := recent.Instance{StartedAt: now, DegradedSince: now.Add(-2 * time.Minute), ConfigAge: time.Minute}
	row = instanceRowOf(&ill, now)
	require.Equal(t, []string{"unnamed", "unknown", "unavailable for 2 minutes", "bad", "1 minute old", "bad", ""},
		[]string{row.Name, row.Version, row.Counters, row.CountersTone, row.Config, row.ConfigTone, row.Checks})
	ill.Failure = "wrong_credentials"
	require.Equal(t, "unavailable for 2 minutes: wrong credentials", func() string { return instanceRowOf(&ill, now).Counters }())
	require.Equal(t, "not loaded yet", func() string { r := instanceRowOf(&recent.Instance{ConfigAge: -1}, now); return r.Config }())
}
