package dashboard

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// members adds one member of each role but owner to tenant A.
func (s *stack) members() {
	s.t.Helper()
	for _, role := range tenants.Roles {
		if role != tenants.Owner {
			s.member(s.a, string(role)+"@example.com", role)
		}
	}
}

// ruleForm is a filled-in form for a rule of tenant A; pairs of names and values replace fields.
func (s *stack) ruleForm(pairs ...string) url.Values {
	form := url.Values{
		"tenant": {s.a.TenantID().String()}, "slug": {"api"}, "name": {"API requests"}, "description": {""}, "resource": {"*"},
		"algorithm": {"sliding_window_counter"}, "limit": {"100"}, "window": {"1"}, "window_unit": {"m"}, "burst": {""},
		"precision": {""}, "precision_unit": {"s"}, "penalty": {""}, "penalty_unit": {"m"}, "by_subject": {"on"}, "attributes": {""},
		"mode": {"enforce"}, "on_unavailable": {"local"}, "consistency": {"strict"},
	}
	for i := 0; i < len(pairs); i += 2 {
		form.Set(pairs[i], pairs[i+1])
	}
	return form
}

// version returns the version of a rule of tenant A, as forms contain it.
func (s *stack) ruleVersion(slug string) string {
	s.t.Helper()
	rule, err := s.store.RuleBySlug(s.t.Context(), s.a, slug)
	require.NoError(s.t, err)
	return itoa(rule.Version)
}

// A rule is stored as meant: human units are converted, and unused fields are omitted.
func TestMakeRule(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for slug, c := range map[string]struct {
		fields []string
		want   limit.Rule
	}{
		"plain": {nil, limit.Rule{Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window(t, "1m"), By: []string{"subject"}}},
		"big": {[]string{"limit", "1,000,000", "window", "30", "window_unit", "d"},
			limit.Rule{Algorithm: limit.SlidingWindowCounter, Limit: 1_000_000, Window: window(t, "30d"), By: []string{"subject"}}},
		"month": {[]string{"algorithm", "fixed_window", "window_unit", "month", "burst", "7", "precision", "3"},
			limit.Rule{Algorithm: limit.FixedWindow, Limit: 100, Window: window(t, "month"), By: []string{"subject"}}},
		"bucket": {[]string{"algorithm", "token_bucket", "burst", "200", "penalty", "5", "mode", "shadow", "on_unavailable", "deny"},
			limit.Rule{Algorithm: limit.TokenBucket, Limit: 100, Burst: 200, Window: window(t, "1m"), By: []string{"subject"},
				Penalty: limit.Duration{Text: "5m", MS: 300_000}, Mode: limit.Shadow, OnUnavailable: limit.Deny}},
		"steps": {[]string{"algorithm", "sliding_window_buckets", "precision", "500", "precision_unit", "ms", "by_subject", "", "by_resource", "on", "attributes", "ip, country"},
			limit.Rule{Algorithm: limit.SlidingWindowBuckets, Limit: 100, Window: window(t, "1m"), Precision: limit.Duration{Text: "500ms", MS: 500},
				By: []string{"resource", "attributes.ip", "attributes.country"}}},
		"steps-by-themselves": {[]string{"algorithm", "sliding_window_buckets"},
			limit.Rule{Algorithm: limit.SlidingWindowBuckets, Limit: 100, Window: window(t, "1m"), Precision: limit.Duration{Text: "1s", MS: 1000}, By: []string{"subject"}}},
		"uneven": {[]string{"algorithm", "sliding_window_buckets", "window", "7", "window_unit", "s"},
			limit.Rule{Algorithm: limit.SlidingWindowBuckets, Limit: 100, Window: window(t, "7s"), Precision: limit.Duration{Text: "125ms", MS: 125}, By: []string{"subject"}}},
		"leased": {[]string{"consistency", "leased"},
			limit.Rule{Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window(t, "1m"), By: []string{"subject"}, Consistency: limit.Leased}},
		"all": {[]string{"by_subject", "", "resource", "orders:*"},
			limit.Rule{Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window(t, "1m"), By: []string{}, Resource: "orders:*"}},
		"new": {nil, limit.Rule{Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window(t, "1m"), By: []string{"subject"}}},
	} {
		got := b.post("/rules", s.ruleForm(append([]string{"slug", slug}, c.fields...)...))
		require.Equal(t, http.StatusSeeOther, got.status, got.body)
		require.Equal(t, ruleURL(slug), got.header.Get("Location"))
		got = b.get(got.header.Get("Location"))
		require.Equal(t, http.StatusOK, got.status)
		require.Contains(t, got.body, "Rule “API requests” created.")
		require.Contains(t, got.body, "/rules/"+slug+"/edit", "the path is the page of a rule with any slug")
		stored, err := s.store.RuleBySlug(t.Context(), s.a, slug)
		require.NoError(t, err)
		c.want.Slug, c.want.Name = slug, "API requests"
		if c.want.Resource == "" {
			c.want.Resource = "*"
		}
		require.Equal(t, c.want, stored.Rule)

		// An unchanged form changes nothing.
		form := url.Values{"tenant": {s.a.TenantID().String()}, "version": {itoa(stored.Version)}}
		for name, value := range ruleValues(&stored.Rule) {
			form.Set(name, value)
		}
		require.Equal(t, http.StatusSeeOther, b.post("/rules/"+slug+"/edit", form).status)
		again, err := s.store.RuleBySlug(t.Context(), s.a, slug)
		require.NoError(t, err)
		require.Equal(t, stored, again)
	}
	require.Contains(t, b.get("/rules/new").body, "Create rule", "a rule with this slug does not replace the page")
	entries, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "rule"}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "ann@example.com", entries[0].ActorName)
}

func window(t *testing.T, text string) limit.Window {
	t.Helper()
	w, err := limit.ParseWindow(text)
	require.NoError(t, err)
	return w
}

// Errors are shown at their fields, and the input is kept.
func TestRuleFormRefused(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	for words, fields := range map[string][]string{
		"Must be 1 to 63 of a-z, 0-9 and -":                         {"slug", "Not A Slug"},
		"Must be a whole number, such as 100":                       {"limit", "many"},
		"from 1 to 10000 with sliding_window_log":                   {"limit", "10001", "algorithm", "sliding_window_log"},
		"Must be 1 with a calendar unit":                            {"window", "2", "window_unit", "week", "algorithm", "fixed_window"},
		"May use a calendar unit only with":                         {"window_unit", "week"},
		"Must be a duration from 1s to 366d":                        {"window", "400", "window_unit", "d"},
		"Must be a whole number, such as 1":                         {"window", ""},
		"Must divide window into":                                   {"algorithm", "sliding_window_buckets", "precision", "7"},
		"from 1 to 1,000,000,000":                                   {"algorithm", "token_bucket", "burst", "0"},
		"Must refill within 366 days":                               {"algorithm", "token_bucket", "burst", "100000000", "window", "300", "window_unit", "d", "limit", "1"},
		"Must be attribute names":                                   {"attributes", "ip, <b>"},
		"Must name each attribute once":                             {"attributes", "ip, ip"},
		"Must be a duration up to 30d":                              {"penalty", "31", "penalty_unit", "d"},
		"May contain * only as its last character":                  {"resource", "a*b"},
		"Must be one of leased, strict":                             {"consistency", "loose"},
		"Must be one of allow, deny, local":                         {"on_unavailable", "perhaps"},
		"There is a rule with this slug already":                    {"slug", "requests"},
		"Must not contain control characters":                       {"resource", "a\x01"},
		"Must be one of fixed_window, fixed_window_first_hit, leak": {"algorithm", "guess"},
	} {
		got := b.post("/rules", s.ruleForm(append([]string{"name", "What I wrote"}, fields...)...))
		want := http.StatusUnprocessableEntity
		if strings.HasPrefix(words, "There is") {
			want = http.StatusConflict
		}
		require.Equal(t, want, got.status, words)
		require.Contains(t, got.body, words)
		require.Contains(t, got.body, `value="What I wrote"`, words)
		checkHeaders(t, got, words)
	}
	rules, _, err := s.store.Rules(t.Context(), s.a, tenants.RuleFilter{}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rules, 2, "nothing was created")
}

// Roles are enforced, whatever the page shows, and a form is valid only for its own tenant.
func TestRuleRoles(t *testing.T) {
	s := newStack(t)
	s.members()
	s.fill(s.a, "mark")
	s.fill(s.b, "other")
	for email, may := range map[string]bool{
		"ann@example.com": true, "admin@example.com": true, "editor@example.com": true, "support@example.com": false, "viewer@example.com": false,
	} {
		b := s.as(email)
		refused := func(status int) int {
			if may {
				return status
			}
			return http.StatusForbidden
		}
		require.Equal(t, refused(http.StatusOK), b.get("/rules/new").status, email)
		require.Equal(t, refused(http.StatusOK), b.get("/rules/requests/edit").status, email)
		require.Equal(t, refused(http.StatusOK), b.post("/rules/preview", s.ruleForm()).status, email)
		name, _, _ := strings.Cut(email, "@")
		form := s.ruleForm("slug", "of-"+name)
		require.Equal(t, refused(http.StatusSeeOther), b.post("/rules", form).status, email)
		require.Equal(t, refused(http.StatusSeeOther), b.post("/rules/requests/mode", s.ruleForm("mode", "shadow")).status, email)
		require.Equal(t, refused(http.StatusSeeOther), b.post("/rules/requests/mode", s.ruleForm("mode", "enforce")).status, email)
		require.Equal(t, refused(http.StatusSeeOther), b.post("/rules/requests/edit", s.ruleForm("name", "By "+name)).status, email)
		if may {
			require.Equal(t, http.StatusSeeOther, b.post("/rules/of-"+name+"/delete", s.ruleForm()).status, email)
		} else {
			require.Equal(t, http.StatusForbidden, b.post("/rules/requests/delete", s.ruleForm()).status, email)
		}
		require.Equal(t, may, strings.Contains(b.get("/rules/requests").body, "/rules/requests/edit"), email)
		require.Equal(t, may, strings.Contains(b.get("/rules").body, "/rules/new"), email)
	}
	bob := s.as("bob@example.com")
	for _, path := range []string{"/rules", "/rules/preview", "/rules/requests/edit", "/rules/requests/mode", "/rules/requests/delete"} {
		require.Equal(t, http.StatusConflict, bob.post(path, s.ruleForm()).status, "%s: the form is for tenant A", path)
	}
	_, err := s.store.CreateRule(t.Context(), s.a, limit.Rule{Slug: "only-a", Resource: "*", Algorithm: limit.TokenBucket, Limit: 1, Window: window(t, "1m")})
	require.NoError(t, err)
	own := s.ruleForm("tenant", s.b.TenantID().String(), "rule", "only-a")
	for _, path := range []string{"/rules/preview", "/rules/only-a/edit", "/rules/only-a/mode", "/rules/only-a/delete"} {
		require.Equal(t, http.StatusNotFound, bob.post(path, own).status, path)
	}
	require.Equal(t, http.StatusNotFound, bob.get("/rules/only-a/edit").status)
}

// A user who would overwrite another change is warned first, and may then save.
func TestRuleConflicts(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	stale := s.ruleVersion("requests")
	require.Equal(t, http.StatusSeeOther, b.post("/rules/requests/edit", s.ruleForm("version", stale, "limit", "11")).status)

	got := b.post("/rules/requests/edit", s.ruleForm("version", stale, "limit", "x"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, `name="version" value="`+stale+`"`, "mending a field must not hide the other's change")
	got = b.post("/rules/requests/edit", s.ruleForm("version", stale, "limit", "12"))
	require.Equal(t, http.StatusPreconditionFailed, got.status)
	require.Contains(t, got.body, "Somebody else changed this")
	require.Contains(t, got.body, `value="12"`)
	require.Contains(t, got.body, `name="version" value="`+s.ruleVersion("requests")+`"`)
	for _, path := range []string{"/rules/requests/mode", "/rules/requests/delete"} {
		got = b.post(path, s.ruleForm("version", stale, "mode", "off"))
		require.Equal(t, http.StatusPreconditionFailed, got.status)
		require.Contains(t, got.body, "Somebody else changed this rule")
	}
	require.Equal(t, http.StatusBadRequest, b.post("/rules/requests/mode", s.ruleForm("mode", "sometimes")).status)
	rule, err := s.store.RuleBySlug(t.Context(), s.a, "requests")
	require.NoError(t, err)
	require.Equal(t, int64(11), rule.Limit)
	require.Equal(t, limit.Enforce, rule.Mode)

	// A plan's limit that would become invalid is reported in the form.
	got = b.post("/rules/requests/edit", s.ruleForm("algorithm", "token_bucket", "window", "366", "window_unit", "d"))
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	_, _, err = s.store.PutPlanLimit(t.Context(), s.a, "free", "requests", limit.Limit{Limit: 5, Burst: 5}, tenants.Match{})
	require.NoError(t, err)
	got = b.post("/rules/requests/edit", s.ruleForm("algorithm", "fixed_window"))
	require.Equal(t, http.StatusUnprocessableEntity, got.status)
	require.Contains(t, got.body, "Does not fit the limit of plan free")
}

func TestDeleteRule(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	got := b.get("/rules/requests")
	require.Contains(t, got.body, "1 plan loses its limit for this rule: Plan mark.")
	require.Contains(t, got.body, "1 subject override is deleted.")
	got = b.post("/rules/requests/delete", s.ruleForm("version", s.ruleVersion("requests")))
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Equal(t, "/rules", got.header.Get("Location"))
	require.Contains(t, b.get("/rules").body, "Rule “Rule mark” deleted.")
	require.Equal(t, http.StatusNotFound, b.get("/rules/requests").status)
}

// Credits that customers have not spent keep a rule, and the page says so before anything is sent.
func TestDeleteRuleWithCredits(t *testing.T) {
	s := newStack(t)
	ctx := t.Context()
	rule := limit.NewRule("reports")
	rule.Algorithm, rule.Limit, rule.Window = limit.FixedWindow, 5, limit.Window{Duration: limit.Duration{Text: "1h", MS: 3_600_000}}
	_, err := s.store.CreateRule(ctx, s.a, rule)
	require.NoError(t, err)
	b := s.as("ann@example.com")
	require.NotContains(t, b.get("/rules/reports").body, "cannot be deleted now")
	grant, _, err := s.store.GrantCredits(ctx, s.a, "ada", tenants.NewCredits{Rule: "reports", Units: 10})
	require.NoError(t, err)
	got := b.get("/rules/reports")
	require.Contains(t, got.body, "cannot be deleted now")
	require.Contains(t, got.body, "1 subject has unspent credits for this rule.")
	require.NotContains(t, got.body, `action="/rules/reports/delete"`)
	require.NoError(t, s.store.RevokeCredits(ctx, s.a, "ada", grant.ID, tenants.Match{}))
	require.Contains(t, b.get("/rules/reports").body, `action="/rules/reports/delete"`)
}

// The list shows the recent results of each rule, and has its filters in the address.
func TestRulesList(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.post("/rules/by-ip/mode", s.ruleForm("mode", "shadow")).status)
	s.usage(s.a, time.Hour, "requests", 1200, 34)
	got := b.get("/rules")
	require.Contains(t, got.body, `<td class="num checks">1,234</td><td class="num is-denied" data-label="Denied:">34</td>`)
	require.Contains(t, got.body, "no checks")
	for path, want := range map[string][2]bool{ // requests, by-ip
		"/rules?mode=shadow": {false, true}, "/rules?mode=enforce": {true, false}, "/rules?algorithm=sliding_window_log": {true, true},
		"/rules?algorithm=token_bucket": {false, false}, "/rules?resource=*": {true, true}, "/rules?q=req": {true, false}, "/rules?q=Rule": {true, true},
	} {
		got = b.get(path)
		require.Equal(t, http.StatusOK, got.status)
		require.Equal(t, want[0], strings.Contains(got.body, `href="/rules/requests"`), path)
		require.Equal(t, want[1], strings.Contains(got.body, `href="/rules/by-ip"`), path)
	}
	require.Contains(t, b.get("/rules?algorithm=token_bucket").body, "No rules found")
	for _, path := range []string{"/rules?mode=x", "/rules?q=%00", "/rules?algorithm=x", "/rules?resource=%00"} {
		require.Equal(t, http.StatusBadRequest, b.get(path).status, path)
	}
}

// usage writes usage of a rule and its tenant for the previous period.
func (s *stack) usage(a tenants.Actor, grain time.Duration, rule string, allowed, denied int64) {
	s.t.Helper()
	start := s.clock.Now().Truncate(grain).Add(-grain).UnixMilli()
	counts := usage.Counts{Allowed: allowed, Denied: denied, CostAllowed: allowed, CostDenied: denied}
	row := func(rule, resource string) usage.Row {
		return usage.Row{Key: usage.Key{Tenant: a.TenantID(), StartMS: start, Rule: rule, Resource: resource}, Counts: counts}
	}
	require.NoError(s.t, s.store.WriteUsage(s.t.Context(), &usage.Batch{
		Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: s.clock.Now(), Rows: []usage.Row{row("", "default"), row(rule, "default")},
	}))
}

// A switch of the mode says what the rule did in the last hour, and can be undone with one click.
func TestModeSwitchCanBeUndone(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	s.decided(s.a, usage.Minute, 5*time.Minute, "requests", 100, 27)
	b := s.as("editor@example.com")
	require.Contains(t, b.get("/rules/requests").body, "It denied 27 checks in the last hour.")
	got := b.get("/rules/requests?mode=shadow").body
	require.Contains(t, got, "to shadow? It then denies nothing.")
	require.NotContains(t, b.get("/rules/requests?mode=enforce").body, "Switch mode", "it is enforced")
	require.NotContains(t, s.as("viewer@example.com").get("/rules/requests?mode=shadow").body, "Switch mode")

	sent := b.write("/rules/requests/mode", url.Values{"mode": {"shadow"}})
	require.Equal(t, "/rules/requests", sent.header.Get("Location"))
	got = b.get(sent.header.Get("Location")).body
	require.Contains(t, got, "is in shadow. It reports what it would deny and denies nothing. It denied 27 checks in the last hour.")
	require.Regexp(t, `(?s)action="/rules/requests/mode".*name="mode" value="enforce".*Undo`, got)
	got = b.get("/rules/requests").body
	require.NotContains(t, got, "Undo", "the message is shown once")
	require.Contains(t, got, "It denied 27 checks in the last hour.", "and did not only report them")
	sent = b.write("/rules/requests/mode", url.Values{"mode": {"enforce"}})
	require.Equal(t, http.StatusSeeOther, sent.status)
	rule, err := s.store.RuleBySlug(t.Context(), s.a, "requests")
	require.NoError(t, err)
	require.Equal(t, limit.Enforce, rule.Mode)
}

// A deleted rule is restored from the trail, but not over another one.
func TestDeletedRuleIsRestored(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	before, err := s.store.RuleBySlug(t.Context(), s.a, "requests")
	require.NoError(t, err)
	b := s.as("editor@example.com")
	require.Equal(t, http.StatusSeeOther, b.write("/rules/requests/delete", url.Values{}).status)
	got := b.get("/rules").body
	require.Contains(t, got, "Undo restores it without its plan limits and overrides.")
	require.Contains(t, got, `action="/rules/requests/restore"`)
	require.Contains(t, b.get("/audit").body, "Restore deleted rule requests")
	require.NotContains(t, s.as("viewer@example.com").get("/audit").body, "Restore deleted rule requests")
	require.Equal(t, http.StatusForbidden, s.as("viewer@example.com").write("/rules/requests/restore", url.Values{"deleted": {"1"}}).status)
	sent := b.write("/rules/requests/restore", url.Values{"deleted": {"1"}})
	require.Equal(t, "/rules/requests", sent.header.Get("Location"))
	after, err := s.store.RuleBySlug(t.Context(), s.a, "requests")
	require.NoError(t, err)
	require.Equal(t, before.Rule, after.Rule)
	require.Equal(t, "/rules", b.write("/rules/requests/restore", url.Values{"deleted": {"1"}}).header.Get("Location"))
	require.Contains(t, b.get("/rules").body, "is not deleted")
	require.Equal(t, "/rules", b.write("/rules/unknown/restore", url.Values{"deleted": {"1"}}).header.Get("Location"))
}

// The capacity of a queue is called so, as in the rule editor.
func TestQueuesHaveNoBurst(t *testing.T) {
	t.Parallel()
	require.Equal(t, "Queue", burstLabel(limit.LeakyBucketQueue))
	require.Equal(t, "Burst", burstLabel(limit.TokenBucket))
	rule := limit.Rule{Slug: "mail", Resource: "mail", Limit: 5, Window: limit.Window{Duration: limit.Duration{MS: 60_000, Text: "1m"}}, Algorithm: limit.LeakyBucketQueue, Burst: 7}
	for _, f := range ruleFacts(&rule) {
		require.NotEqual(t, "Burst", f.Name)
	}
}
