package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/testenv"
)

// planForm returns a form of tenant A.
func (s *stack) planForm(pairs ...string) url.Values {
	form := url.Values{"tenant": {s.a.TenantID().String()}}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

func (s *stack) planVersion(slug string) string {
	s.t.Helper()
	plan, err := s.store.PlanBySlug(s.t.Context(), s.a, slug)
	require.NoError(s.t, err)
	return itoa(plan.Version)
}

func (s *stack) limits(plan string) map[string]limit.Limit {
	s.t.Helper()
	p, err := s.store.PlanBySlug(s.t.Context(), s.a, plan)
	require.NoError(s.t, err)
	return p.Limits
}

// A limit is previewed before it is saved, and saved as previewed.
func TestPlanNumber(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	const path = "/plans/free/limits/requests"
	require.Contains(t, b.get("/plans").body, `href="`+path+`"`)
	got := b.get(path)
	require.Equal(t, http.StatusOK, got.status)
	checkHeaders(t, got, path)
	require.Contains(t, got.body, "Current limit in Plan mark: <strong>20 per minute</strong>.")
	require.Contains(t, b.get("/plans/free/limits/by-ip").body, `<option value="default" selected>`)

	got = b.post(path+"/preview", s.planForm("kind", "number", "limit", "1 000", "version", s.planVersion("free")))
	require.Equal(t, http.StatusOK, got.status)
	checkHeaders(t, got, path)
	for _, words := range []string{
		"20 per minute → 1,000 per minute", "1 registered subject uses it, and so does every subject that is not registered.",
		"1 of them has an override for this rule and keeps its limit.", `name="limit" value="1 000"`, ">Save limit</button>",
	} {
		require.Contains(t, got.body, words)
	}
	require.Equal(t, limit.Limit{Limit: 20}, s.limits("free")["requests"], "a preview saves nothing")
	got = b.post(path, s.planForm("kind", "number", "limit", "1 000", "version", s.planVersion("free")))
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Contains(t, b.get(got.header.Get("Location")).body, "Rule mark in plan Plan mark set to 1,000 per minute.")
	require.Equal(t, limit.Limit{Limit: 1000}, s.limits("free")["requests"])
	require.Contains(t, b.post(path+"/preview", s.planForm("kind", "number", "limit", "1000")).body, "This is the current limit")

	require.Equal(t, http.StatusSeeOther, b.post(path, s.planForm("kind", "unlimited", "limit", "junk")).status)
	require.Equal(t, limit.Limit{Unlimited: true}, s.limits("free")["requests"])
	for range 2 { // the second time there is nothing to delete
		require.Equal(t, http.StatusSeeOther, b.post(path, s.planForm("kind", "default")).status)
		require.Empty(t, s.limits("free"))
	}
	for words, pairs := range map[string][]string{
		"whole number, such as 100": {"kind", "number", "limit", "lots"},
		"from 1 to 10000":           {"kind", "number", "limit", "0"},
		"one of the choices":        {"kind", "other"},
	} {
		for _, action := range []string{"", "/preview"} {
			got = b.post(path+action, s.planForm(pairs...))
			require.Equal(t, http.StatusUnprocessableEntity, got.status, words)
			require.Contains(t, got.body, words)
		}
	}

	stale := s.planVersion("free")
	require.Equal(t, http.StatusSeeOther, b.post(path, s.planForm("kind", "number", "limit", "5", "version", stale)).status)
	got = b.post(path, s.planForm("kind", "number", "limit", "6", "version", stale))
	require.Equal(t, http.StatusPreconditionFailed, got.status)
	require.Contains(t, got.body, "Somebody else changed this plan")
	require.Contains(t, got.body, `name="version" value="`+s.planVersion("free")+`"`)
	require.Equal(t, int64(5), s.limits("free")["requests"].Limit)
}

// A script gets pieces of the matrix; for a bucket they include the burst.
func TestPlanNumberInPlace(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	_, err := s.store.CreateRule(t.Context(), s.a, limit.Rule{Slug: "bucket", Resource: "*", Algorithm: limit.TokenBucket, Limit: 5, Window: window(t, "1s"), By: []string{"subject"}})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	ask := func(method, path string, form url.Values) page {
		r := b.request(method, path, form)
		r.Header.Set("HX-Request", "true")
		return b.send(r)
	}
	const path = "/plans/free/limits/bucket"
	got := ask(http.MethodGet, path, nil)
	require.Equal(t, http.StatusOK, got.status)
	require.NotContains(t, got.body, "<html")
	require.Contains(t, got.body, `name="burst"`)
	require.NotContains(t, ask(http.MethodGet, "/plans/free/limits/requests", nil).body, `name="burst"`)
	got = ask(http.MethodPost, path+"/preview", s.planForm("kind", "number", "limit", "7", "burst", "70"))
	require.NotContains(t, got.body, "<html")
	require.Contains(t, got.body, "5 per second → 7 per second, burst 70")
	got = ask(http.MethodPost, path+"/preview", s.planForm("kind", "number", "limit", "7", "burst", "0"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.NotContains(t, got.body, "<html")
	require.Contains(t, got.body, "Burst must be a whole number")
	require.Equal(t, http.StatusSeeOther, b.post(path, s.planForm("kind", "number", "limit", "7", "burst", "70")).status)
	require.Equal(t, limit.Limit{Limit: 7, Burst: 70}, s.limits("free")["bucket"])
}

// The limit of a plan has a share for warnings and, if the rule can count an excess, the overage.
func TestPlanLimitWarnsAndAllowsOverage(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	warnAt, err := limit.PortionOf(0.5)
	require.NoError(t, err)
	_, err = s.store.CreateRule(t.Context(), s.a, limit.Rule{
		Slug: "monthly", Resource: "*", Algorithm: limit.FixedWindow, Limit: 100, Window: window(t, "1h"), By: []string{"subject"}, WarnAt: warnAt,
	})
	require.NoError(t, err)
	b := s.as("ann@example.com")
	const path = "/plans/free/limits/monthly"
	got := b.get(path).body
	require.Contains(t, got, "100 per hour, warning at 50 %")
	require.Contains(t, got, "The rule’s own is 50 %.")
	require.Regexp(t, `value=""[^>]* name="warn_at"`, got, "the plan need not repeat it")
	require.Contains(t, got, `name="overage"`)
	require.NotContains(t, b.get("/plans/free/limits/requests").body, `name="overage"`, "a log cannot count an excess")

	form := []string{"kind", "number", "limit", "200", "warn_at", "80 %", "overage", "allow"}
	preview := b.post(path+"/preview", s.planForm(form...)).body
	require.Contains(t, preview, "200 per hour, warning at 80 %, overage allowed")
	require.Contains(t, preview, `name="warn_at" value="80 %"`)
	require.Contains(t, preview, `name="overage" value="allow"`)
	require.Equal(t, http.StatusSeeOther, b.post(path, s.planForm(form...)).status)
	saved := s.limits("free")["monthly"]
	require.Equal(t, limit.OverageAllow, saved.Overage)
	require.Equal(t, "80 %", saved.WarnAt.Percent())
	require.Regexp(t, `value="0.8"[^>]* name="warn_at"`, b.get(path).body)
	require.Contains(t, b.get("/plans").body, "200 per hour, warning at 80 %, overage allowed")

	for words, pairs := range map[string][]string{
		"a number from 0 to 1": {"warn_at", "2"},
		"one of allow, deny":   {"overage", "maybe"},
	} {
		got := b.post(path, s.planForm(append(pairs, "kind", "number", "limit", "5")...))
		require.Equal(t, http.StatusUnprocessableEntity, got.status)
		require.Contains(t, got.body, words)
	}
	require.Equal(t, http.StatusSeeOther, b.post(path, s.planForm("kind", "number", "limit", "5")).status)
	require.Equal(t, limit.Limit{Limit: 5}, s.limits("free")["monthly"])
}

// A limit of a subject shows the excess before the warning.
func TestLimitViewOfWarningAndOverage(t *testing.T) {
	warnAt, err := limit.PortionOf(0.8)
	require.NoError(t, err)
	r := check.RuleDecision{
		Rule: &limit.Rule{Slug: "monthly", Algorithm: limit.FixedWindow, Window: window(t, "1h")}, Allowed: true, Limit: 100, Quota: 100,
		Remaining: 15, Warning: true, WarnAt: warnAt, MayExceed: true,
	}
	l := limitViewOf(&r, nil)
	require.Equal(t, "Warning, beyond 80 %", l.Note)
	require.Equal(t, "85 of 100 used", l.UsedText())
	r.Remaining, r.Overage = 0, 250
	l = limitViewOf(&r, nil)
	require.Equal(t, "Overage 250", l.Note)
	require.Equal(t, "350 of 100 used", l.UsedText())
}

// Credits that the counters do not know are not shown as spent: the read has them opened.
func TestLimitViewOfUnopenedCredits(t *testing.T) {
	r := check.RuleDecision{
		Rule: &limit.Rule{Slug: "monthly", Algorithm: limit.FixedWindow, Window: window(t, "1h")}, Allowed: true, Limit: 100, Quota: 100,
		Remaining: 100, HasCredits: true, Unopened: true,
	}
	require.Equal(t, "credits not read yet: reload the page", limitViewOf(&r, nil).Credits)
	r.Unopened, r.Credits = false, 3
	require.Equal(t, "3 credits left", limitViewOf(&r, nil).Credits)
}

// One affected subject is not "none of the 1 busiest".
func TestPlanImpactOfOneSubject(t *testing.T) {
	for want, c := range map[string]check.Comparison{
		"The only affected subject with checks in the last hour is not over the new limit now.":                                            {Asked: 1},
		"No further subject is over the new limit now.":                                                                                    {Asked: 1, Now: []string{"ann"}, Then: []string{"ann"}},
		"The only affected subject with checks in the last hour is over the new limit now and would be denied until enough usage expires.": {Asked: 1, Then: []string{"ann"}},
		"None of the 2 busiest affected subjects is over the new limit now.":                                                               {Asked: 2},
	} {
		var view impactView
		view.judge(c, "hour")
		require.Equal(t, want, view.Verdict)
	}
}

// Before a lower limit is saved, the page lists the subjects that would be over it immediately, by
// the live counters.
func TestPlanImpact(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark") // free: 20; "ada mark" has an override
	s.asked(5*time.Minute, "default", map[string]int64{"heavy": 18, "ada mark": 18, "light": 3})
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	for subject, cost := range map[string]int64{"heavy": 18, "ada mark": 18, "light": 3, "unseen": 19} {
		_, err = s.checker.Check(t.Context(), policy, []check.Request{{Subject: subject, Resource: "default", Cost: cost}})
		require.NoError(t, err)
	}
	b := s.as("ann@example.com")
	preview := func(pairs ...string) string {
		got := b.post("/plans/free/limits/requests/preview", s.planForm(pairs...))
		require.Equal(t, http.StatusOK, got.status)
		return got.body
	}
	got := preview("kind", "number", "limit", "18")
	require.Contains(t, got, "Of the 2 busiest affected subjects, 1 is over the new limit now")
	require.Contains(t, got, `<a href="/subjects/heavy">heavy</a>`)
	require.NotContains(t, got, "/subjects/light")
	require.NotContains(t, got, "/subjects/ada")
	require.NotContains(t, got, "/subjects/unseen", "the page says which subjects it compares")
	require.Contains(t, got, "busiest subjects of the last hour, up to 1,000.")
	require.Contains(t, preview("kind", "number", "limit", "2"), "2 are over the new limit now")
	require.Contains(t, preview("kind", "number", "limit", "21"), "is over the new limit now")
	require.Contains(t, preview("kind", "unlimited"), "is over the new limit now")
	got = b.post("/plans/free/limits/by-ip/preview", s.planForm("kind", "number", "limit", "1")).body
	require.Contains(t, got, "Counters cannot be found without those values")

	_, err = s.checker.Check(t.Context(), policy, []check.Request{{Subject: "heavy", Resource: "default", Cost: 2}})
	require.NoError(t, err)
	require.Contains(t, preview("kind", "number", "limit", "30"), "1 subject that is denied now would be allowed.")
	got = preview("kind", "number", "limit", "18")
	require.Contains(t, got, "No further subject of the 2 busiest affected subjects is over the new limit now.", "subjects that are over the old limit are not new")
	require.Contains(t, got, `heavy</a>: 20 of 20 used, new limit 18 per minute`, "and is still listed")

	s.serve(s.store, "redis://127.0.0.1:1")
	got = s.as("ann@example.com").post("/plans/free/limits/requests/preview", s.planForm("kind", "number", "limit", "1")).body
	require.Contains(t, got, "Redis is unavailable.")
}

func TestMakeAndChangePlans(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	got := b.post("/plans", s.planForm("slug", "pro", "name", "Pro", "like", "free"))
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Contains(t, b.get("/plans").body, "Plan “Pro” created.")
	require.Equal(t, map[string]limit.Limit{"requests": {Limit: 20}}, s.limits("pro"), "it begins with the limits of the other plan")
	for words, pairs := range map[string][]string{
		"Must be 1 to 63 of a-z, 0-9 and -": {"slug", "A B"}, "Must be at most 200 characters": {"slug", "x", "name", strings.Repeat("x", 201)},
		"There is a plan with this slug already": {"slug", "pro"},
	} {
		got = b.post("/plans", s.planForm(pairs...))
		require.Contains(t, []int{http.StatusUnprocessableEntity, http.StatusConflict}, got.status)
		require.Contains(t, got.body, words)
	}
	got = b.post("/plans", s.planForm("slug", "x", "like", "none"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Must be one of the listed options.")

	stale := s.planVersion("pro")
	require.Equal(t, http.StatusSeeOther, b.post("/plans/pro/edit", s.planForm("name", "Professional", "version", stale)).status)
	got = b.post("/plans/pro/edit", s.planForm("name", "Mine", "version", stale))
	require.Equal(t, http.StatusPreconditionFailed, got.status)
	require.Contains(t, got.body, `value="Mine"`)
	require.Equal(t, http.StatusPreconditionFailed, b.post("/plans/pro/delete", s.planForm("version", stale)).status)

	got = b.post("/plans/free/delete", s.planForm())
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.body, "make another plan the default first")
	require.Contains(t, b.get("/plans/pro/edit").body, "0 subjects use it.")
	require.Equal(t, http.StatusSeeOther, b.post("/plans/pro/default", s.planForm("version", s.planVersion("pro"))).status)
	got = b.get("/plans/pro/edit")
	require.Contains(t, got.body, "1 registered subject uses it, and so does every subject that is not registered.")
	require.NotContains(t, got.body, "Make default")
	require.Equal(t, http.StatusSeeOther, b.post("/plans/free/delete", s.planForm()).status)
	require.Equal(t, http.StatusNotFound, b.get("/plans/free/edit").status)

	_, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "buyer", Plan: "pro"}, tenants.Match{})
	require.NoError(t, err)
	got = b.post("/plans/pro/delete", s.planForm())
	require.Equal(t, http.StatusConflict, got.status)
	require.Contains(t, got.body, "Subjects have this plan")
}

// Roles are enforced, another tenant's plans and rules are not found, and while Postgres is
// unavailable nothing is reported as done.
func TestPlanRoles(t *testing.T) {
	s := newStack(t)
	s.members()
	s.fill(s.a, "mark")
	writes := []string{"/plans", "/plans/free/edit", "/plans/free/default", "/plans/free/limits/requests", "/plans/free/limits/requests/preview", "/plans/spare/delete",
		"/plans/free/versions", "/plans/free/migrations/preview"}
	once := []string{"/plans/free/versions/1/delete", "/plans/free/migrations", "/plans/free/migrations/00000000-0000-4000-8000-000000000000/cancel"}
	for email, may := range map[string]bool{"admin@example.com": true, "editor@example.com": true, "support@example.com": false, "viewer@example.com": false} {
		_, _, err := s.store.PutPlan(t.Context(), s.a, tenants.Plan{Slug: "spare"}, tenants.Match{})
		require.NoError(t, err)
		b := s.as(email)
		name, _, _ := strings.Cut(email, "@")
		for _, path := range writes {
			got := b.post(path, s.planForm("slug", "of-"+name, "kind", "number", "limit", "9", "name", "Plan of "+name))
			if may {
				require.Less(t, got.status, 400, "%s %s", email, path)
			} else {
				require.Equal(t, http.StatusForbidden, got.status, "%s %s", email, path)
			}
		}
		for _, path := range once {
			require.Equal(t, !may, b.post(path, s.planForm()).status == http.StatusForbidden, "%s %s", email, path)
		}
		for _, path := range []string{"/plans/new", "/plans/free/edit", "/plans/free/limits/requests"} {
			require.Equal(t, may, b.get(path).status == http.StatusOK, "%s %s", email, path)
		}
		require.Equal(t, may, strings.Contains(b.get("/plans").body, `class="cell"`), email)
	}
	bob := s.as("bob@example.com")
	own := s.planForm("tenant", s.b.TenantID().String(), "slug", "x", "kind", "number", "limit", "9", "like", "free")
	for _, path := range append(writes, once...) {
		require.Equal(t, http.StatusConflict, bob.post(path, s.planForm()).status, path)
		want := http.StatusNotFound
		if path == "/plans" { // the plan to copy is a field
			want = http.StatusUnprocessableEntity
		}
		require.Equal(t, want, bob.post(path, own).status, path)
	}
	require.Equal(t, http.StatusNotFound, bob.get("/plans/free/limits/requests").status)
	require.Equal(t, http.StatusNotFound, bob.get("/plans/free/versions").status)

	ann := s.as("ann@example.com")
	token := ann.token()
	away := s.db.Open(tenants.Config{DatabaseURL: "postgres://x:y@127.0.0.1:1/z?sslmode=disable"})
	s.serve(away, testenv.RedisURL(t))
	for _, path := range append(append(writes, once...), "/rules", "/rules/preview", "/rules/requests/edit", "/rules/requests/mode", "/rules/requests/delete", "/rules/requests/restore") {
		r := s.browser().request(http.MethodPost, path, s.ruleForm("kind", "number", "limit", "9"))
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: token})
		got := s.browser().send(r)
		require.Equal(t, http.StatusServiceUnavailable, got.status, path)
		require.Contains(t, got.body, "Configuration unavailable")
	}
}

// A tenant can have 100 000 limits of plans, most of them in older versions. A page reads only
// those that it shows.
func TestPagesReadFewLimitsOfPlans(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	_, err := s.store.PublishPlan(t.Context(), s.a, "free", map[string]limit.Limit{"requests": {Limit: 21}}, tenants.Match{})
	require.NoError(t, err)
	_, err = s.policies.Get(t.Context(), s.a.TenantID()) // which has all limits
	require.NoError(t, err)
	s.db.Exec("REVOKE SELECT ON plan_version_limits FROM weir_app")
	for _, path := range []string{"/plans", "/plans/free/limits/requests"} {
		got := b.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.Contains(t, got.body, "21 per minute", path)
	}
	s.db.Exec("REVOKE SELECT ON plan_limits FROM weir_app")
	for path, shown := range map[string]string{
		"/subjects": "Plan mark", "/usage": `value="free"`, "/billing": "Plan mark", "/plans/new": "Plan mark",
		"/tester": "Plan mark", "/search?q=mark": "Plan mark",
	} {
		got := b.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.Contains(t, got.body, shown, path)
	}
}
