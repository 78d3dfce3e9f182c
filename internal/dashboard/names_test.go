package dashboard

import (
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

var (
	// identifiers are the parts of a page that show slugs on purpose: commands, identifiers in
	// monospaced type, and data for scripts.
	identifiers = regexp.MustCompile(`(?s)<(pre|code|textarea|script)\b.*?</(pre|code|textarea|script)>|<(\w+)[^>]*class="[^"]*\bmono\b[^"]*"[^>]*>[^<]*</\w+>`)
	tags        = regexp.MustCompile(`(?s)<[^>]*>`)
	heard       = regexp.MustCompile(`(?:title|aria-label|placeholder)="([^"]*)"`) // texts in attributes
)

// said returns the texts that a page shows or reads out.
func (p page) said() string {
	body := identifiers.ReplaceAllString(p.body, " ")
	var b strings.Builder
	for _, attribute := range heard.FindAllStringSubmatch(body, -1) {
		b.WriteString(attribute[1] + "\n")
	}
	b.WriteString(tags.ReplaceAllString(body, " "))
	return html.UnescapeString(b.String())
}

// Pages and messages name rules and plans by their names. Slugs are for addresses and commands.
func TestNamesNotSlugs(t *testing.T) {
	s := newStack(t)
	ctx := t.Context()
	const rule, plan = "zq-rule", "zq-plan"
	window, err := limit.ParseWindow("1h")
	require.NoError(t, err)
	r := limit.NewRule(rule)
	r.Name, r.Resource, r.Algorithm, r.Limit, r.Window, r.By, r.Metering = "Orders per hour", "orders", limit.FixedWindow, 5, window, []string{"subject"}, limit.MeterUnits
	_, err = s.store.CreateRule(ctx, s.a, r)
	require.NoError(t, err)
	_, err = s.store.CreatePlan(ctx, s.a, tenants.Plan{Slug: plan, Name: "Gold plan", Default: true, Limits: map[string]limit.Limit{rule: {Limit: 6}}})
	require.NoError(t, err)
	const other = "zq-plan-2"
	_, err = s.store.CreatePlan(ctx, s.a, tenants.Plan{Slug: other, Name: "Silver plan", Limits: map[string]limit.Limit{rule: {Limit: 2}}})
	require.NoError(t, err)
	_, _, err = s.store.PutSubject(ctx, s.a, tenants.Subject{Subject: "ada", Plan: plan}, tenants.Match{})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	since := s.clock.Now().Add(-time.Minute).UnixMilli()
	policy, err := s.policies.Get(ctx, s.a.TenantID())
	require.NoError(t, err)
	for range 8 {
		_, err := s.checker.Check(ctx, policy, []check.Request{{Subject: "ada", Resource: "orders", Cost: 1}})
		require.NoError(t, err)
	}
	require.Contains(t, b.get("/start/wait?since="+itoa(since)).said(), "Orders per hour")

	said := func(got page, to string) {
		t.Helper()
		require.Equal(t, http.StatusSeeOther, got.status, got.body)
		text := b.get(to).said()
		require.NotRegexp(t, `zq-(rule|plan)`, text, to)
	}
	said(b.write("/subjects/ada", url.Values{"do": {"grant"}, "rule": {rule}, "units": {"50"}, "reason": {"paid"}}), "/subjects/ada")
	said(b.write("/subjects/ada", url.Values{"do": {"boost"}, "rule": {rule}, "factor": {"2"}, "for": {"1d"}, "reason": {"a sale"}}), "/subjects/ada")
	said(b.write("/subjects/ada", url.Values{"do": {"reset"}, "rule": {rule}, "reason": {"a mistake"}}), "/subjects/ada")
	said(b.write("/subjects/ada", url.Values{"do": {"plan"}, "plan": {plan}, "next_plan_at": {"2099-01-01T00:00"}, "reason": {"agreed"}}), "/subjects/ada")
	got := b.post("/plans/"+plan+"/migrations/preview", s.planForm("from_version", "1", "to", other, "at", "now"))
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.NotRegexp(t, `zq-(rule|plan)`, got.said(), "preview of a migration")

	for _, path := range []string{
		"/", "/?period=24h", "/rules", "/rules/" + rule, "/rules/" + rule + "/history", "/plans", "/plans/" + plan + "/versions", "/plans/" + plan + "/edit", "/plans/" + plan + "/limits/" + rule,
		"/subjects", "/subjects/ada", "/subjects/ada?tab=usage", "/subjects/ada?tab=denials", "/subjects/ada?tab=audit", "/decisions?show=all", "/usage?by=rule", "/usage?by=plan", "/metered",
		"/audit", "/requests", "/tester?subject=ada&resource=orders", "/search?q=orders", "/search?q=boost+ada", "/settings/customer-page",
		"/start/wait?since=" + itoa(since),
	} {
		got := b.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.NotRegexp(t, `zq-(rule|plan)`, got.said(), path)
	}
}

// The names of a tenant are read and folded once, however many values a form has. Of several with
// the same name, a form means the first one. Before, it was any of them.
func TestNamesAreFoldedOnce(t *testing.T) {
	for range 20 {
		f := &form{values: url.Values{"plan": {"Pro plan", "PRO PLAN", " pro plan ", "pro", "Other"}, "tier": {"Straße", "K"}}}
		reads := 0
		f.replaceNames(planNameFields, func() map[string]string {
			reads++
			return map[string]string{"pro-2": "Pro Plan", "pro-1": "pro plan", "way": "STRAßE", "kelvin": "\u212a"}
		})
		require.Equal(t, 1, reads)
		require.Equal(t, url.Values{"plan": {"pro-1", "pro-1", "pro-1", "pro", "Other"}, "tier": {"way", "kelvin"}}, f.values)
	}
}
