package dashboard

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// A support person finds out why a customer is denied, and resets the limit.
func TestSupportFreesACustomer(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	require.True(t, s.check("user_7", 20).Allowed)
	require.False(t, s.check("user_7", 1).Allowed)

	b := s.as("support@example.com")
	got := b.get("/subjects/user_7")
	require.Contains(t, got.body, "Denied by")
	require.Contains(t, got.body, "Reset 1 limit")
	require.Contains(t, got.body, `<input type="hidden" name="rules" value="requests">`, "a paid quota is not reset with it")
	got = b.write("/subjects/user_7", url.Values{"do": {"reset"}, "reason": {"they wrote in"}})
	require.Equal(t, http.StatusUnprocessableEntity, got.status, "a reset names its limits")
	require.Contains(t, got.body, "Choose a limit, or all limits.")
	got = b.write("/subjects/user_7", url.Values{"do": {"reset"}, "rule": {"*"}, "reason": {"they wrote in"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Equal(t, "/subjects/user_7", got.header.Get("Location"))
	got = b.get("/subjects/user_7")
	require.Contains(t, got.body, "user_7 reset: Rule mark")
	require.Contains(t, got.body, "they wrote in", "the trail shows it")
	require.NotContains(t, got.body, "Denied by")
	require.NotContains(t, b.get("/subjects/user_7").body, "user_7 reset: Rule mark", "the message is shown once")
	require.True(t, s.check("user_7", 1).Allowed)
}

// A form with several limits resets all of them or none, and each once. Before, the first one was
// reset without a row in the trail if the second one could not be.
func TestResetOfSeveralLimits(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	require.True(t, s.check("user_7", 20).Allowed)
	b := s.as("support@example.com")
	for _, other := range []string{"none", "by-ip", "\x00"} {
		got := b.write("/subjects/user_7", url.Values{"do": {"reset"}, "rule": {"requests", other}, "reason": {"they wrote in"}})
		require.Equal(t, http.StatusUnprocessableEntity, got.status)
		require.Contains(t, got.body, "Choose a rule that is counted per subject.")
		require.False(t, s.check("user_7", 1).Allowed)
	}
	got := b.write("/subjects/user_7", url.Values{"do": {"reset"}, "rule": {"requests", "requests"}, "reason": {"they wrote in"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.Equal(t, 1, strings.Count(b.get("/subjects/user_7").body, "user_7 reset: Rule mark."))
	require.True(t, s.check("user_7", 1).Allowed)
}

// The form for all limits that deny a subject has one field for them, because a form may have 200.
// Before, it was refused if there were more.
func TestResetOfManyDenyingLimits(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	require.True(t, s.check("user_7", 20).Allowed)
	many := strings.Repeat("requests ", maxFields+1)
	got := s.as("support@example.com").write("/subjects/user_7", url.Values{"do": {"reset"}, "rules": {many}, "reason": {"they wrote in"}})
	require.Equal(t, http.StatusSeeOther, got.status, got.body)
	require.True(t, s.check("user_7", 1).Allowed)
	require.Equal(t, "a b", slugsOf([]limitView{{Rule: "a"}, {Rule: "b"}}))
}

// Values that are no text are no fault of the server. Before, the answer was 500.
func TestAddressesThatAreNoText(t *testing.T) {
	s := newStack(t)
	s.staff()
	b := s.as("support@example.com")
	for _, path := range []string{"/decisions?resource=%00", "/usage?plan=%ff%fe", "/usage?a=%zz&resource=%ff"} {
		require.Equal(t, http.StatusBadRequest, b.get(path).status, path)
	}
	require.Equal(t, http.StatusNotFound, b.get("/metered?after=24h").status)
	require.Equal(t, http.StatusOK, b.get("/usage?resource=%C3%A9").status)
}

// A denial by a rule that counts by more than the subject is not visible in the subject's numbers,
// so it is shown separately.
func TestSubjectDeniedElsewhere(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	request := check.Request{Subject: "user_8", Resource: "default", Cost: 10, Attributes: []check.Attribute{{Name: "ip", Value: "203.0.113.7"}}}
	for _, allowed := range []bool{true, false} {
		decisions, err := s.checker.Check(t.Context(), policy, []check.Request{request})
		require.NoError(t, err)
		require.Equal(t, allowed, decisions[0].Allowed)
	}
	b := s.as("ann@example.com")
	got := b.get("/subjects/user_8")
	require.Contains(t, got.body, "Last denied at")
	require.Regexp(t, `class="badge bad"[^>]*>limited<`, got.body)
	require.NotContains(t, got.body, `>active</span>`)
	require.Contains(t, got.body, `<a href="/rules/by-ip">`)
	require.NotContains(t, b.get("/subjects/user_9").body, "Last denied at")
}

// A subject that loses some of its checks is limited, also in the instant in which its counters
// would allow one more, until somebody resets them.
func TestSubjectDeniedALittleAgoIsLimited(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	require.True(t, s.check("user_7", 15).Allowed)
	require.False(t, s.check("user_7", 10).Allowed)
	b := s.as("ann@example.com")
	for _, path := range []string{"/subjects/user_7", "/subjects/user_7?fragment=limits"} {
		got := b.get(path).body
		require.NotContains(t, got, "Denying")
		require.Regexp(t, `class="badge bad"[^>]*>limited<`, got)
		require.NotContains(t, got, `>active</span>`)
	}
	got := b.get("/subjects/user_7").body
	require.Regexp(t, `Denied by Rule mark[^:]*(<time.*</time>)?: 1 of the last [0-9]+ checks?\.|Rule mark denied 1 check in the last 5 minutes`, got)
	require.Regexp(t, `<input type="text" value="requests"[^>]* id="reset-rule"`, got, "the rule that denied is chosen to be reset")

	s.clock.catchUp()
	require.Equal(t, http.StatusSeeOther, b.write("/subjects/user_7", url.Values{"do": {"reset"}, "rule": {"requests"}, "reason": {"asked"}}).status)
	require.Regexp(t, `class="badge good"[^>]*>active<`, b.get("/subjects/user_7").body)
}

// The page says when denials began, which does not move while they continue.
func TestSubjectLimitedSince(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 30, 0, time.UTC)
	view := subjectView{now: at, Chart: newChart("", stretchUntil(at, usage.Minute, 60), nil)}
	view.Denied = []decisionRow{{Name: "API requests", last: at.Add(-time.Second), times: 9}}
	bars := view.Chart.Bars
	for i := range 8 { // until the last minute
		bars[len(bars)-1-i].Allowed, bars[len(bars)-1-i].Denied = 10, 5
	}
	view.DeniedSince = view.Chart.deniedSince()
	require.Equal(t, "Denied by API requests since 11:53 UTC: 10 of the last 30 checks.", inUTC(view.WhyLimited()))
	view.DeniedSince = view.Chart.From
	require.Equal(t, "Denied by API requests: 10 of the last 30 checks.", view.WhyLimited(), "the chart begins later than the denials")
}

// Without Redis, the page does not call a subject active of which it does not know the counters.
func TestSubjectWithoutRedisIsNotKnown(t *testing.T) {
	rule := limit.Rule{Slug: "requests", Limit: 10, Mode: limit.Enforce}
	view := subjectView{State: "active", Degraded: true, Limits: []limitView{limitViewOf(&check.RuleDecision{Rule: &rule, Mode: limit.Enforce, Uncounted: true, Degraded: true, Limit: 10, Quota: 10}, nil)}}
	require.True(t, view.Unknown())
	require.Equal(t, "Not known", view.Limits[0].State(), "also of a rule that denies while Redis is unavailable")
	require.False(t, view.Limited())
	var b bytes.Buffer
	require.NoError(t, subjectStateBadge(&view).Render(t.Context(), &b))
	require.Contains(t, b.String(), "Not known: Redis is unavailable")
}

// Every action with its requirements and its effect.
func TestSubjectActions(t *testing.T) {
	s := newStack(t)
	s.staff()
	s.fill(s.a, "mark")
	now := s.clock.Now()
	subject := func() tenants.Subject {
		t.Helper()
		got, err := s.store.SubjectByName(t.Context(), s.a, "user_7")
		require.NoError(t, err)
		return got
	}
	for _, step := range []struct {
		role string
		form url.Values
		then func()
	}{
		{"support", url.Values{"do": {"boost"}, "rule": {"requests"}, "factor": {"5"}, "for": {"4h"}}, func() {
			o := subject().Overrides[0]
			require.Equal(t, limit.Limit{Limit: 100}, o.Limit, "5 times the limit of the plan")
			require.WithinDuration(t, now.Add(4*time.Hour), *o.ExpiresAt, time.Second)
			require.Equal(t, "because", o.Reason)
			require.True(t, s.check("user_7", 100).Allowed, "burst")
		}},
		{"support", url.Values{"do": {"remove-override"}, "rule": {"requests"}}, func() { require.Empty(t, subject().Overrides) }},
		{"editor", url.Values{"do": {"override"}, "rule": {"requests"}, "limit": {"1 000"}, "starts_at": {"2099-01-01T00:00"}, "expires_at": {"2099-02-01T00:00"}}, func() {
			require.Equal(t, int64(1000), subject().Overrides[0].Limit.Limit)
		}},
		{"editor", url.Values{"do": {"override"}, "rule": {"requests"}, "unlimited": {"on"}}, func() { require.True(t, subject().Overrides[0].Limit.Unlimited) }},
		{"editor", url.Values{"do": {"plan"}, "plan": {"free"}}, func() { require.Equal(t, "free", subject().Plan) }},
		{"editor", url.Values{"do": {"state"}, "state": {"blocked"}}, func() {
			require.Equal(t, check.Blocked, subject().State)
			require.False(t, s.check("user_7", 1).Allowed)
			require.Contains(t, s.as("support@example.com").get("/subjects/user_7").body, "Blocked.")
		}},
		{"editor", url.Values{"do": {"state"}, "state": {"active"}}, func() { require.True(t, s.check("user_7", 1).Allowed) }},
		{"editor", url.Values{"do": {"details"}, "labels": {"name: Ada\n\n city : London"}, "billing_ref": {"cus_1"}}, func() {
			require.Equal(t, map[string]string{"name": "Ada", "city": "London"}, subject().Labels)
			require.Equal(t, "cus_1", subject().BillingRef)
		}},
		{"editor", url.Values{"do": {"delete"}}, func() {
			_, err := s.store.SubjectByName(t.Context(), s.a, "user_7")
			require.ErrorIs(t, err, tenants.ErrNotFound)
		}},
	} {
		name := step.form.Encode()
		viewer := s.as("viewer@example.com")
		step.form.Set("reason", "because")
		require.Equal(t, http.StatusForbidden, viewer.write("/subjects/user_7", step.form).status, name)
		if step.role == "editor" {
			require.Equal(t, http.StatusForbidden, s.as("support@example.com").write("/subjects/user_7", step.form).status, name)
		}
		b := s.as(step.role + "@example.com")
		step.form.Del("reason")
		got := b.write("/subjects/user_7", step.form)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, "%s without a reason", name)
		require.Contains(t, got.body, missingReason+"</p>", name)
		step.form.Set("reason", "because")
		got = b.write("/subjects/user_7", step.form)
		require.Equal(t, http.StatusSeeOther, got.status, "%s: %s", name, got.body)
		step.then()
		rows, _, err := s.store.Audit(t.Context(), s.a, tenants.AuditFilter{Kind: "subject", Target: "user_7"}, tenants.Page{Limit: 1})
		require.NoError(t, err)
		require.Equal(t, "because", rows[0].Reason, name)
		require.Equal(t, step.role+"@example.com", rows[0].ActorName, name)
		require.NotEmpty(t, rows[0].Address, name)
	}
}

// Errors of a form are shown at their fields, with the input.
func TestSubjectActionsRefuse(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	b := s.as("ann@example.com")
	for want, form := range map[string]url.Values{
		"Must be a whole number":                     {"do": {"override"}, "rule": {"requests"}, "limit": {"many"}},
		"Must be a time such as":                     {"do": {"override"}, "rule": {"requests"}, "limit": {"5"}, "expires_at": {"tomorrow"}},
		"Must be in the future":                      {"do": {"override"}, "rule": {"requests"}, "limit": {"5"}, "expires_at": {"2001-01-01T00:00"}},
		"Must be one of the tenant":                  {"do": {"override"}, "rule": {"nope"}, "limit": {"5"}},
		"Must be one of the listed options":          {"do": {"boost"}, "rule": {"requests"}, "factor": {"3"}, "for": {"1h"}},
		"Must be a rule that is counted per subject": {"do": {"boost"}, "rule": {"nope"}, "factor": {"2"}, "for": {"1h"}},
		"Must be one “name: value” per line":         {"do": {"details"}, "labels": {"name"}},
		"Has no counter for this subject":            {"do": {"reset"}, "rule": {"by-ip"}},
	} {
		form.Set("reason", "kept <b>text</b>")
		got := b.write("/subjects/user_7", form)
		require.Equal(t, http.StatusUnprocessableEntity, got.status, want)
		require.Contains(t, got.body, want)
		require.Contains(t, got.body, `value="kept &lt;b&gt;text&lt;/b&gt;"`, "%s: the input is kept", want)
		require.Contains(t, got.body, `aria-invalid="true"`, want)
		checkHeaders(t, got, want)
	}
	require.Equal(t, http.StatusBadRequest, b.write("/subjects/user_7", url.Values{"do": {"nothing"}}).status)

	subject, _, err := s.store.PutSubject(t.Context(), s.a, tenants.Subject{Subject: "two"}, tenants.Match{})
	require.NoError(t, err)
	stale := url.Values{"do": {"details"}, "billing_ref": {"mine"}, "version": {itoa(subject.Version - 1)}, "reason": {"x"}}
	got := b.write("/subjects/two", stale)
	require.Equal(t, http.StatusPreconditionFailed, got.status)
	require.Contains(t, got.body, "Somebody else changed this")
	require.Contains(t, got.body, `value="mine"`)
}

// A form of one tenant has no effect in another, nor on its subjects.
func TestSubjectActionsKeepToTheirTenant(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.member(s.b, "ann@example.com", tenants.Owner)
	b := s.as("ann@example.com")
	require.Equal(t, http.StatusSeeOther, b.post("/tenant", url.Values{"tenant": {s.b.TenantID().String()}}).status)
	block := url.Values{"do": {"state"}, "state": {"blocked"}, "reason": {"x"}}
	got := b.write("/subjects/ada mark", block)
	require.Equal(t, http.StatusConflict, got.status, "the form is for tenant A")
	require.Contains(t, got.body, "switched to another tenant")
	_, err := s.store.SubjectByName(t.Context(), s.b, "ada mark")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	block.Set("tenant", s.b.TenantID().String())
	require.Equal(t, http.StatusSeeOther, b.post("/subjects/ada%20mark", block).status)
	inA, err := s.store.SubjectByName(t.Context(), s.a, "ada mark")
	require.NoError(t, err)
	require.Equal(t, check.Active, inA.State)
	require.Equal(t, http.StatusConflict, b.post("/subjects/x", url.Values{"do": {"state"}}).status, "a form without a tenant")

	r := s.browser().request(http.MethodPost, "/subjects/x", block)
	require.Equal(t, http.StatusSeeOther, s.browser().send(r).status, "nobody is signed in")
}

// The live part of the page is returned alone, and only to members.
func TestSubjectLimitsLive(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	got := s.as("ann@example.com").get("/subjects/user_7?fragment=limits")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "0 of 20 used")
	require.NotContains(t, got.body, "<html")
	require.Equal(t, http.StatusSeeOther, s.browser().get("/subjects/user_7?fragment=limits").status)
}
