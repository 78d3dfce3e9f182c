package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/engine"
)

// limits requests the live limits of a subject; query has no question mark.
func (s *checkStack) limits(subject, query string) LimitsAnswer {
	s.t.Helper()
	a := s.contract.call(s.key, http.MethodGet, "/v1/subjects/"+url.PathEscape(subject)+"/limits?"+query, nil).ok(200)
	var out LimitsAnswer
	require.NoError(s.t, json.Unmarshal(a.body, &out), "%s", a.body)
	return out
}

// rule returns a rule of an answer, or nil.
func (l LimitsAnswer) rule(slug string) *CheckRule {
	for i := range l.Rules {
		if l.Rules[i].Rule == slug {
			return &l.Rules[i]
		}
	}
	return nil
}

func (l LimitsAnswer) skipped() map[string]HiddenRule {
	out := map[string]HiddenRule{}
	for _, h := range l.Skipped {
		out[h.Rule] = h
	}
	return out
}

func (s *checkStack) resetCounters(subject string, body obj, headers ...header) answer {
	s.t.Helper()
	return s.contract.call(s.key, http.MethodPost, "/v1/subjects/"+url.PathEscape(subject)+"/reset", body, headers...)
}

// Support sees the same numbers as checks, and consumes nothing.
func TestSubjectLimits(t *testing.T) {
	s := newCheckStack(t)
	const subject = "täglich/user 42"
	for range 2 {
		s.check(`{"subject":"` + subject + `"}`).decision(200)
	}
	s.check(`{"subject":"` + subject + `","resource":"one"}`).decision(200)
	s.check(`{"subject":"` + subject + `","resource":"orders:create"}`).decision(200)
	s.check(`{"subject":"` + subject + `","resource":"queue"}`).decision(200)

	for range 3 {
		l := s.limits(subject, "")
		require.Equal(t, subject, l.Subject)
		require.Equal(t, "active", l.State)
		require.Equal(t, "free", *l.Plan)
		require.False(t, l.Degraded)
		r := l.rule("per-subject")
		require.Equal(t, int64(3), *r.Remaining)
		require.Equal(t, int64(perSubject), *r.Limit)
		require.Equal(t, int64(3_600_000), *r.WindowMS)
		require.Equal(t, "plan:free", r.Source)
		require.True(t, r.Allowed)
		require.Equal(t, int64(0), *r.RetryAfterMS)
		require.InDelta(t, 3_600_000, *r.ResetAfterMS, 60_000)
		one := l.rule("one")
		require.False(t, one.Allowed)
		require.Equal(t, int64(0), *one.Remaining)
		require.Equal(t, one.ResetAfterMS, one.RetryAfterMS)
		require.Equal(t, int64(3), *l.rule("queue").Burst)
		require.Positive(t, *l.rule("queue").DelayMS)
		require.Equal(t, "shadow", l.rule("tried-out").Mode)
		require.Equal(t, map[string]HiddenRule{
			"orders":       {Rule: "orders", Reason: "missing_values", Missing: []string{"resource"}},
			"by-ip":        {Rule: "by-ip", Reason: "not_by_subject", Missing: []string{}},
			"switched-off": {Rule: "switched-off", Reason: "mode_off", Missing: []string{}},
		}, l.skipped())
	}
	require.Equal(t, int64(3), s.remaining(subject, "default"))
	require.Equal(t, int64(2), *s.limits(subject, "resource=orders:create").rule("orders").Remaining)
	require.Equal(t, int64(3), *s.limits(subject, "resource=orders:list").rule("orders").Remaining)
	require.Equal(t, "resource_mismatch", s.limits(subject, "resource=default").skipped()["orders"].Reason)

	require.Equal(t, "blocked", s.limits("blocked", "").State)
	exempt := s.limits("exempt", "")
	require.Equal(t, "exempt", exempt.State)
	require.Equal(t, "shadow", exempt.rule("per-subject").Mode)
	paying := s.limits("paying", "")
	require.Equal(t, "pro", *paying.Plan)
	require.Equal(t, "plan:pro", paying.rule("per-subject").Source)
}

// Rules that count by attributes are shown if the attributes are given, each with its own value.
func TestSubjectLimitsByAttributes(t *testing.T) {
	s := newCheckStack(t)
	for _, r := range []string{"eu", "us"} {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly("in-"+r, "in:"+r, 4, "subject", "attributes.ip", "attributes.region"))
		require.NoError(t, err)
	}
	s.check(`{"subject":"s","resource":"in:eu","attributes":{"ip":"2001:db8::1","region":"eu"}}`).decision(200)
	l := s.limits("s", "attribute=ip:2001:db8::1&attribute=region:eu")
	require.Equal(t, int64(3), *l.rule("in-eu").Remaining)
	require.Equal(t, int64(4), *l.rule("in-us").Remaining)
	require.Equal(t, int64(4), *s.limits("s", "attribute=ip:2001:db8::1&attribute=region:us").rule("in-eu").Remaining)
	require.Equal(t, []string{"attributes.region"}, s.limits("s", "attribute=ip:1").skipped()["in-eu"].Missing)

	limits := func(query string) answer {
		return s.contract.call(s.key, http.MethodGet, "/v1/subjects/s/limits?"+query, nil)
	}
	for _, query := range []string{
		"attribute=ip", "attribute=", "attribute=ip:", "attribute=:1", "attribute=subject:1", "attribute=a%20b:1",
		"attribute=ip:1&attribute=ip:2", "attribute=ip:%00", "attribute=ip:%0a", "attribute=ip:1&attribute=",
	} {
		require.Equal(t, []string{"query:attribute"}, limits(query).pointers(422, codeInvalidRequest), query)
	}
	for _, query := range []string{"resource=", "resource=%07", "resource=a&resource=b"} {
		require.Equal(t, []string{"query:resource"}, limits(query).pointers(422, codeInvalidRequest), query)
	}
	limits("plan=free").problem(400, codeUnknownParameter)
	s.contract.call(s.key, http.MethodGet, "/v1/subjects/a%0ab/limits", nil).problem(422, codeInvalidRequest)
}

// After a reset, the customer has the full quota. Other subjects, rules and tenants are not
// affected.
func TestResetSubject(t *testing.T) {
	s := newCheckStack(t)
	for range 2 {
		s.check(`{"subject":"s"}`).decision(200)
		s.check(`{"subject":"s","resource":"one"}`)
		s.check(`{"subject":"s","resource":"orders:create"}`).decision(200)
		s.check(`{"subject":"t"}`).decision(200)
	}
	a := s.resetCounters("s", obj{"rule": "one", "reason": "was charged for our mistake"}).ok(200)
	require.JSONEq(t, `{"reset":["one"],"skipped":[]}`, string(a.body))
	require.Equal(t, int64(1), s.remaining("s", "one"))
	require.Equal(t, int64(3), s.remaining("s", "default"))

	// Another tenant's reset of a subject with this name has no effect here.
	other := s.contract.call(s.other, http.MethodPost, "/v1/subjects/s/reset", obj{"reason": "mine"}).ok(200)
	require.JSONEq(t, `{"reset":[],"skipped":[]}`, string(other.body))
	require.Equal(t, []string{"/rule"}, s.contract.call(s.other, http.MethodPost, "/v1/subjects/s/reset", obj{"rule": "one", "reason": "mine"}).
		pointers(422, codeInvalidRequest))
	require.Equal(t, int64(3), s.remaining("s", "default"))

	all := s.resetCounters("s", obj{"reason": "again"}).ok(200)
	require.JSONEq(t, `{"reset":["bulk","costly","one","paid","per-subject","queue","switched-off","tried-out","warned"],"skipped":[
		{"rule":"by-ip","reason":"not_by_subject","missing":[]},{"rule":"orders","reason":"missing_values","missing":["resource"]}]}`, string(all.body))
	s.untouched("s")
	require.Equal(t, int64(1), s.remaining("s", "orders:create"))
	require.Equal(t, int64(3), s.remaining("t", "default"))

	s.resetCounters("s", obj{"rule": "orders", "resource": "orders:create", "reason": "again"}).ok(200)
	require.Equal(t, int64(3), s.remaining("s", "orders:create"))
}

// A reset that is repeated because its answer was lost does not give the quota twice.
func TestResetIsRepeatedSafely(t *testing.T) {
	s := newCheckStack(t)
	key := header{"Idempotency-Key", "reset-1"}
	s.check(`{"subject":"s"}`).decision(200)
	first := s.resetCounters("s", obj{"reason": "r"}, key).ok(200)
	s.check(`{"subject":"s"}`).decision(200)
	again := s.resetCounters("s", obj{"reason": "r"}, key).ok(200)
	require.Equal(t, "true", again.header.Get("Idempotency-Replayed"))
	require.Equal(t, first.body, again.body)
	require.Equal(t, int64(perSubject-1), s.remaining("s", "default"))
}

// The error of a reset names the missing values.
func TestResetErrors(t *testing.T) {
	s := newCheckStack(t)
	_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly("in", "in:*", 4, "subject", "resource", "attributes.ip"))
	require.NoError(t, err)
	for _, c := range []struct {
		body     obj
		pointers []string
	}{
		{obj{}, []string{"/reason"}},
		{obj{"reason": ""}, []string{"/reason"}},
		{obj{"reason": " \t"}, []string{"/reason"}},
		{obj{"reason": string(make([]byte, 501))}, []string{"/reason"}},
		{obj{"reason": "\x00"}, []string{"/reason"}}, // the trail cannot store it
		{obj{"reason": "r", "rule": ""}, []string{"/rule"}},
		{obj{"reason": "r", "rule": "none"}, []string{"/rule"}},
		{obj{"reason": "r", "rule": "by-ip"}, []string{"/rule"}},
		{obj{"reason": "r", "rule": "orders"}, []string{"/resource"}},
		{obj{"reason": "r", "rule": "orders", "resource": "default"}, []string{"/resource"}},
		{obj{"reason": "r", "rule": "orders", "resource": "orders:\n"}, []string{"/resource"}},
		{obj{"reason": "r", "rule": "in"}, []string{"/attributes/ip", "/resource"}},
		{obj{"reason": "r", "rule": "in", "resource": "in:a", "attributes": obj{"ip": ""}}, []string{"/attributes/ip"}},
		{obj{"reason": "r", "rule": "in", "resource": "in:a", "attributes": obj{"no/name": "1"}}, []string{"/attributes/no~1name"}},
		{obj{"reason": "r", "subject": "t"}, []string{"/subject"}},
	} {
		require.Equal(t, c.pointers, s.resetCounters("s", c.body).pointers(422, codeInvalidRequest), "%v", c.body)
	}
	s.resetCounters("s", obj{"reason": "r", "rule": "in", "resource": "in:a", "attributes": obj{"ip": "1"}}).ok(200)
}

// awayCounters is unavailable for all operations.
type awayCounters struct{ awayEngine }

func (awayCounters) Reset(context.Context, ...engine.Counter) error { return errors.New("inner text") }

// If Redis is unavailable, the limits show what checks are answered, and a reset fails.
func TestCountersUnavailable(t *testing.T) {
	s := newCheckStack(t)
	s.registry = prometheus.NewRegistry()
	s.serve(Config{}, s.newDeps(t, awayCounters{}))
	s.check(`{"subject":"s"}`).decision(200)
	l := s.limits("s", "")
	require.True(t, l.Degraded)
	require.True(t, l.rule("per-subject").Degraded)
	require.Equal(t, int64(perSubject-1), *l.rule("per-subject").Remaining)

	a := s.resetCounters("s", obj{"reason": "r"})
	a.problem(503, codeCountersUnavailable)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.NotContains(t, string(a.body), "inner text")
}
