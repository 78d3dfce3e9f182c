package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2/humatest"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/tenants"
)

func (s *checkStack) simulate(body any) answer {
	s.t.Helper()
	return s.contract.call(s.key, http.MethodPost, "/v1/simulate", body)
}

// simulated returns the decoded answer to a simulation.
func (a answer) simulated() SimulateAnswer {
	a.t.Helper()
	a.ok(200)
	require.Equal(a.t, "application/json", a.header.Get("Content-Type"))
	var out SimulateAnswer
	require.NoError(a.t, json.Unmarshal(a.body, &out))
	require.Len(a.t, out.Decisions, int(out.Summary.Requests))
	return out
}

// The author of a rule sees its decisions before it is live, in the form of a check.
func TestSimulate(t *testing.T) {
	s := newCheckStack(t)
	out := s.simulate(`{"rules":[
			{"slug":"api","limit":2,"window":"10s","algorithm":"fixed_window"},
			{"slug":"ip","limit":1,"window":"1m","by":["attributes.ip"],"mode":"shadow"},
			{"slug":"off","limit":1,"window":"1m","mode":"off"}],
		"start_ms":1800000000000,
		"requests":[{"at_ms":0,"subject":"a"},{"at_ms":5000,"subject":"a","attributes":{"ip":"1"}},{"at_ms":9999,"subject":"a","attributes":{"ip":"1"}},
			{"at_ms":9999,"subject":"b","resource":"orders","cost":2},{"at_ms":10000,"subject":"a"},{"at_ms":10000,"subject":"a","cost":3},
			{"at_ms":10001,"subject":"a","cost":0}]}`).simulated()
	var timeline []string
	for _, d := range out.Decisions {
		retry := "-"
		if d.RetryAfterMS != nil {
			retry = itoa(*d.RetryAfterMS)
		}
		timeline = append(timeline, fmt.Sprint(d.AtMS, " ", d.Subject, " ", d.Allowed, " ", *d.Remaining, " ", retry, " ", *d.ResetAfterMS))
	}
	require.Equal(t, []string{
		"0 a true 1 0 10000", "5000 a true 0 0 5000", "9999 a false 0 1 1", "9999 b true 0 0 1",
		"10000 a true 1 0 10000", "10000 a false 1 - 10000", "10001 a true 1 0 9999",
	}, timeline)
	require.Equal(t, "RATE_LIMIT_EXCEEDED", out.Decisions[2].Error.Code)
	require.Equal(t, "COST_EXCEEDS_LIMIT", out.Decisions[5].Error.Code)
	require.Equal(t, "missing_attribute", out.Decisions[0].Skipped[0].Reason)
	require.Equal(t, SimulateSummary{Requests: 7, Allowed: 5, Denied: 2, Rules: []SimulateRuleSummary{
		{"api", 5, 2}, {"ip", 1, 1}, {"off", 0, 0},
	}}, out.Summary)
}

// A simulated decision is the answer to a check with the instant in front: for the same rules and
// requests, both have the same text.
func TestSimulationIsInTheWordsOfACheck(t *testing.T) {
	s := newCheckStack(t)
	simulated := s.simulate(`{"rules":[{"slug":"queue","resource":"queue","algorithm":"leaky_bucket_queue","limit":1,"burst":3,"window":"1h"}],
		"requests":[{"at_ms":7,"subject":"s","resource":"queue"},{"at_ms":7,"subject":"s","resource":"queue","cost":4}]}`).ok(200)
	var out struct{ Decisions []json.RawMessage }
	require.NoError(t, json.Unmarshal(simulated.body, &out))
	for i, body := range []string{`{"subject":"s","resource":"queue"}`, `{"subject":"s","resource":"queue","cost":4}`} {
		checked := strings.Replace(strings.TrimSpace(string(s.check(body).body)), `"plan":"free"`, `"plan":null`, 1)
		text := strings.Replace(string(out.Decisions[i]), `"at_ms":7,`, "", 1)
		if i == 1 { // its bucket drains as the clock advances
			text, checked = text[:strings.Index(text, `"reset_after_ms"`)], checked[:strings.Index(checked, `"reset_after_ms"`)]
		}
		require.Equal(t, checked, text)
	}
}

// Generated traffic is reproducible, and shows the documented effects.
func TestSimulateTraffic(t *testing.T) {
	s := newCheckStack(t)
	rules := `"rules":[{"slug":"fixed","limit":10,"window":"1m","algorithm":"fixed_window"}]`
	for traffic, want := range map[string][2]int64{ // allowed, denied
		`{"pattern":"steady","requests":1,"per_ms":1000,"duration_ms":60000}`:                                      {10, 50},
		`{"pattern":"burst","requests":15,"at_ms":[0,59999,60000],"cost":2,"resource":"r","attributes":{"a":"b"}}`: {10, 35},
		`{"pattern":"ramp","from":0,"to":2,"per_ms":1000,"duration_ms":60000}`:                                     {10, 50},
		`{"pattern":"window_edge","requests":10,"window_ms":60000}`:                                                {20, 0},
		`{"pattern":"window_edge","requests":10,"window_ms":60000,"edges":3,"subjects":["a","b"]}`:                 {80, 40},
	} {
		out := s.simulate(`{` + rules + `,"traffic":` + traffic + `}`).simulated()
		require.Equal(t, want, [2]int64{out.Summary.Allowed, out.Summary.Denied}, traffic)
	}
	poisson := `{` + rules + `,"traffic":{"pattern":"poisson","requests":1,"per_ms":1000,"duration_ms":100000,"seed":5,"subjects":["a","b"]}}`
	first := s.simulate(poisson)
	require.InDelta(t, 200, first.simulated().Summary.Requests, 60)
	require.Equal(t, first.body, s.simulate(poisson).body)
	require.Equal(t, "user_1", s.simulate(`{` + rules + `,"traffic":{"pattern":"burst","requests":1,"at_ms":[0]}}`).simulated().Decisions[0].Subject)
}

// Before a change of the pricing page, its author sees the effect for each tier, the start and end
// of an override, and an upgrade.
func TestSimulatePlans(t *testing.T) {
	s := newCheckStack(t)
	out := s.simulate(`{"rules":[{"slug":"api","limit":1,"window":"1m","algorithm":"fixed_window"}],
		"plans":[{"slug":"free","default":true},{"slug":"pro","limits":{"api":{"limit":3}}},{"slug":"all","limits":{"api":{"unlimited":true}}}],
		"subjects":[{"subject":"paying","plan":"pro"},{"subject":"gone","state":"blocked"},
			{"subject":"special","overrides":{"api":{"limit":2,"starts_at_ms":100,"expires_at_ms":200}}}],
		"start_ms":1800000000000,
		"requests":[{"at_ms":0,"subject":"x"},{"at_ms":1,"subject":"x"},{"at_ms":2,"subject":"x","plan":"pro"},{"at_ms":3,"subject":"x","plan":"all"},
			{"at_ms":4,"subject":"paying","cost":3},{"at_ms":5,"subject":"gone"},
			{"at_ms":99,"subject":"special"},{"at_ms":100,"subject":"special"},{"at_ms":200,"subject":"special","cost":0}]}`).simulated()
	var got []string
	for _, d := range out.Decisions {
		source := "-"
		if len(d.Rules) > 0 {
			source = d.Rules[0].Source
		}
		got = append(got, fmt.Sprint(d.Subject, " ", *d.Plan, " ", d.Allowed, " ", source))
	}
	require.Equal(t, []string{
		"x free true rule", "x free false rule", "x pro true plan:pro", "x all true plan:all", "paying pro true plan:pro", "gone free false -",
		"special free true rule", "special free true override", "special free true rule",
	}, got)
	traffic := s.simulate(`{"rules":[{"slug":"api","limit":1,"window":"1m"}],"plans":[{"slug":"pro","limits":{"api":{"limit":3}}}],
		"traffic":{"pattern":"burst","requests":5,"at_ms":[0],"plan":"pro"}}`).simulated()
	require.EqualValues(t, 3, traffic.Summary.Allowed)
}

func TestSimulatePlansRefuses(t *testing.T) {
	s := newCheckStack(t)
	with := func(more string) answer {
		return s.simulate(`{"rules":[{"slug":"api","limit":1,"window":"1m"}],"requests":[{"at_ms":0,"subject":"s"}],` + more + `}`)
	}
	for more, pointers := range map[string][]string{
		`"plans":[{"slug":"P"},{"slug":"a","default":true},{"slug":"a","default":true}]`:                  {"/plans/0/slug", "/plans/2/default", "/plans/2/slug"},
		`"plans":[{"slug":"a","limits":{"none":{"limit":1},"api":{"limit":0}}}]`:                          {"/plans/0/limits/api/limit", "/plans/0/limits/none"},
		`"plans":[{"slug":"a","limits":{"api":{"limit":1,"unlimited":true}}}]`:                            {"/plans/0/limits/api/unlimited"},
		`"plans":[{"slug":"a","name":"A"}]`:                                                               {"/plans/0/name"},
		`"subjects":[{"subject":"a","plan":"b"},{"subject":"a"},{"subject":"c","state":"gone"}]`:          {"/subjects/2/state"},
		`"subjects":[{"subject":"a","plan":"b"},{"subject":"a"}]`:                                         {"/subjects/0/plan", "/subjects/1/subject"},
		`"subjects":[{"subject":"a\n","overrides":{"x":{"limit":1}}}]`:                                    {"/subjects/0/overrides/x", "/subjects/0/subject"},
		`"subjects":[{"subject":"a","overrides":{"api":{"limit":2,"starts_at_ms":5,"expires_at_ms":5}}}]`: {"/subjects/0/overrides/api/expires_at_ms"},
		`"plans":[` + strings.Repeat(`{"slug":"a"},`, 32) + `{"slug":"b"}]`:                               {"/plans"},
		`"subjects":[` + strings.Repeat(`{"subject":"a"},`, 1000) + `{"subject":"b"}]`:                    {"/subjects"},
	} {
		require.Equal(t, pointers, with(more).pointers(422, codeInvalidRequest), "%.80s", more)
	}
	require.Equal(t, []string{"/requests/0/plan"}, s.simulate(`{"rules":[{"slug":"api","limit":1,"window":"1m"}],
		"requests":[{"at_ms":0,"subject":"s","plan":"free"}]}`).pointers(422, codeInvalidRequest), "a plan of the tenant's is none of the simulation's")
	require.Equal(t, []string{"/traffic/plan"}, s.simulate(`{"rules":[{"slug":"api","limit":1,"window":"1m"}],
		"traffic":{"pattern":"burst","requests":5,"at_ms":[0],"plan":"pro"}}`).pointers(422, codeInvalidRequest))
}

// Invalid simulations are refused by field, with the messages for rules.
func TestSimulateRefuses(t *testing.T) {
	s := newCheckStack(t)
	rule := obj{"slug": "r", "limit": 1, "window": "1m"}
	ask := obj{"at_ms": 0, "subject": "s"}
	many := func(n int, o obj) []obj { return slices.Repeat([]obj{o}, n) }
	for _, c := range []struct {
		body     obj
		pointers []string
	}{
		{obj{"requests": []obj{ask}}, []string{"/rules"}},
		{obj{"rules": []obj{}, "requests": []obj{ask}}, []string{"/rules"}},
		{obj{"rules": many(33, rule), "requests": []obj{ask}}, []string{"/rules"}},
		{obj{"rules": many(2, rule), "requests": []obj{ask}}, []string{"/rules/1/slug"}},
		{obj{"rules": []obj{rule}}, []string{"/requests"}},
		{obj{"rules": []obj{rule}, "requests": []obj{}}, []string{"/requests"}},
		{obj{"rules": []obj{rule}, "requests": []obj{ask}, "traffic": obj{"pattern": "burst", "requests": 1, "at_ms": []int{0}}}, []string{"/requests"}},
		{obj{"rules": []obj{rule}, "requests": many(10_001, ask)}, []string{"/requests"}},
		{obj{"rules": []obj{{"slug": "r", "limit": 1, "window": "1ns"}}, "requests": []obj{ask}}, []string{"/rules/0/window"}},
		{obj{"rules": []obj{rule, {"slug": "x", "limit": 0, "window": "1s", "penalty": "never"}}, "requests": []obj{ask}}, []string{"/rules/1/limit", "/rules/1/penalty"}},
		{obj{"rules": []obj{rule}, "requests": []obj{ask, {"at_ms": -1, "subject": ""}}}, []string{"/requests/1/at_ms", "/requests/1/subject"}},
		{obj{"rules": []obj{rule}, "requests": []obj{ask, {"subject": "s"}}}, []string{"/requests/1/at_ms"}},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": 0, "subject": "a\n", "resource": "b\n", "attributes": obj{"ip": "", "a b": "c"}}}},
			[]string{"/requests/0/attributes/a b", "/requests/0/attributes/ip", "/requests/0/resource", "/requests/0/subject"}},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": 0, "subject": "a", "cost": -1, "dry_run": true}}}, []string{"/requests/0/cost", "/requests/0/dry_run"}},
		{obj{"rules": []obj{rule}, "requests": []obj{{"at_ms": 1, "subject": "a"}}, "start_ms": 99_999_999_999_999}, []string{"/start_ms"}},
		{obj{"rules": []obj{rule}, "traffic": obj{"pattern": "steady", "requests": 1_000_000_000, "per_ms": 1, "duration_ms": 1}}, []string{"/traffic/requests"}},
		{obj{"rules": []obj{rule}, "traffic": obj{"pattern": "steady", "requests": 10_000, "per_ms": 1, "duration_ms": 1_000_000}}, []string{"/traffic"}},
		{obj{"rules": []obj{rule}, "traffic": obj{"pattern": "burst", "requests": 1, "at_ms": []int{0}, "edges": 2, "resource": "\n"}}, []string{"/traffic/edges", "/traffic/resource"}},
		{obj{"rules": []obj{rule}, "traffic": obj{"pattern": "storm"}}, []string{"/traffic/pattern"}},
	} {
		require.Equal(t, c.pointers, s.simulate(c.body).pointers(422, codeInvalidRequest), "%v", c.pointers)
	}
	bad := s.simulate(obj{"rules": []obj{rule}, "requests": many(1000, obj{"at_ms": 0, "subject": "\n"})}).problem(422, codeInvalidRequest)
	require.Len(t, bad.Errors, maxShownErrors)
	s.simulate(obj{"rules": []obj{rule}, "requests": many(10_000, obj{"at_ms": 0, "subject": strings.Repeat("s", 120)})}).problem(413, codeBodyTooLarge)
}

// ruleOf returns a rule in the form of a body.
func ruleOf(t *testing.T, fields obj) (out RuleCreate) {
	t.Helper()
	body, err := json.Marshal(fields)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(body, &out))
	return out
}

// Simulations are limited in time, in the size of the answer, and to two at a time.
func TestSimulateIsBounded(t *testing.T) {
	input := func(rules, requests int) *struct{ Body SimulateInput } {
		in := &struct{ Body SimulateInput }{}
		for i := range rules {
			in.Body.Rules = append(in.Body.Rules, ruleOf(t, obj{"slug": fmt.Sprint("r-", i), "limit": 1, "window": "1m"}))
		}
		in.Body.Traffic = &SimulateTraffic{Pattern: "burst", Requests: int64(requests), AtMS: []int64{0}}
		return in
	}
	as := func(tenant byte) context.Context {
		actor := tenants.AsSystem(uuid.UUID{tenant}, "test")
		return context.WithValue(t.Context(), requestKey{}, &request{authed: true, actor: actor})
	}
	refused := func(sim *simulator, in *struct{ Body SimulateInput }) *Problem {
		_, err := sim.simulate(as(1), in)
		var p *Problem
		require.ErrorAs(t, err, &p)
		return p
	}
	sim := newSimulator(places.NewProcessors(8))
	sim.budget, sim.wait = 0, 0
	p := refused(sim, input(1, 1))
	require.Equal(t, codeSimulationTooLarge, p.Code)
	require.Equal(t, 422, p.Status)
	require.Contains(t, p.Detail, "Ask for fewer")

	sim.budget, sim.timeout = time.Hour, time.Hour
	p = refused(sim, input(32, 10_000))
	require.Equal(t, codeSimulationTooLarge, p.Code)
	require.Contains(t, p.Detail, "16 MiB")

	leave, err := sim.slots.Take(t.Context(), limit.TenantID{1})
	require.NoError(t, err)
	p = refused(sim, input(1, 1))
	require.Equal(t, codeSimulationBusy, p.Code)
	require.Equal(t, 429, p.Status)
	require.Equal(t, 1, p.retryAfter)
	for range 3 {
		answer, err := sim.simulate(as(2), input(1, 1))
		require.NoError(t, err, "another tenant has a place, and gives it back")
		answer.Body(humatest.NewContext(nil, httptest.NewRequest(http.MethodPost, "/v1/simulate", nil), httptest.NewRecorder()))
	}
	leave()
	_, err = sim.simulate(as(1), input(1, 1))
	require.NoError(t, err)
}

// Two tenants that begin another simulation as soon as one has ended do not keep out a third one,
// which waits for the next place. What waits is no answer, of which there are few at once.
func TestSimulationsTakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sim := newSimulator(places.NewProcessors(8))
		first, err := sim.slots.Take(t.Context(), limit.TenantID{1})
		require.NoError(t, err)
		_, err = sim.slots.Take(t.Context(), limit.TenantID{2})
		require.NoError(t, err)
		simulate := func(tenant byte) <-chan error {
			actor := tenants.AsSystem(uuid.UUID{tenant}, "test")
			ctx := context.WithValue(t.Context(), requestKey{}, &request{authed: true, actor: actor})
			in := &struct{ Body SimulateInput }{SimulateInput{
				Rules:   []RuleCreate{ruleOf(t, obj{"slug": "r", "limit": 1, "window": "1m"})},
				Traffic: &SimulateTraffic{Pattern: "burst", Requests: 1, AtMS: []int64{0}},
			}}
			answered := make(chan error, 1)
			go func() {
				_, err := sim.simulate(ctx, in)
				answered <- err
			}()
			synctest.Wait()
			return answered
		}
		third := simulate(3)
		require.Empty(t, third, "it waits")
		require.Zero(t, sim.answers.Held(limit.TenantID{3}), "there is no answer yet")
		fourth := simulate(1)
		first()
		require.NoError(t, <-third)
		require.NoError(t, <-fourth)
		_, err = sim.slots.Take(t.Context(), limit.TenantID{1})
		require.NoError(t, err)
		var busy *Problem
		require.ErrorAs(t, <-simulate(3), &busy, "it does not wait without end")
		require.Equal(t, codeSimulationBusy, busy.Code)
	})
}

// A simulation that panics keeps no place.
func TestSimulationsThatPanic(t *testing.T) {
	t.Parallel()
	sim, tenant := newSimulator(places.NewProcessors(8)), limit.TenantID{1}
	ctx := context.WithValue(t.Context(), requestKey{}, &request{authed: true, actor: tenants.AsSystem(uuid.UUID(tenant), "test")})
	require.Panics(t, func() { _, _ = sim.simulate(ctx, nil) })
	require.Zero(t, sim.answers.Held(tenant))
	require.Zero(t, sim.asking.Held(tenant))
}

// A hundred concurrent simulations are all answered, and checks continue. If all of them arrive
// before the first is answered, they are more than the requests of a tenant may be, which is 503.
func TestManySimulationsAtOnce(t *testing.T) {
	s := newCheckStack(t)
	body := `{"rules":[{"slug":"r","limit":10,"window":"1m"}],"traffic":{"pattern":"burst","requests":200,"at_ms":[0]}}`
	answers := make(chan *http.Response)
	for range 100 {
		go func() {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/v1/simulate", strings.NewReader(body))
			r.Header.Set("Authorization", "Bearer "+s.key)
			r.Header.Set("Content-Type", "application/json")
			response, err := http.DefaultTransport.RoundTrip(r)
			if err == nil {
				_ = response.Body.Close()
			}
			answers <- response
		}()
	}
	s.check(`{"subject":"s"}`).decision(200)
	statuses := map[int]int{}
	for range 100 {
		response := <-answers
		require.NotNil(t, response)
		statuses[response.StatusCode]++
		if response.StatusCode != http.StatusOK {
			require.Equal(t, "1", response.Header.Get("Retry-After"))
		}
	}
	t.Log(statuses)
	require.Equal(t, 100, statuses[200]+statuses[429]+statuses[503])
	require.Positive(t, statuses[200])
	s.simulate(`{"rules":[{"slug":"r","limit":10,"window":"1m"}],"traffic":{"pattern":"burst","requests":10,"at_ms":[0]}}`).simulated()
}

// Answers of simulations are not stored: a key that may only read could fill the database.
func TestSimulationsAreNotKept(t *testing.T) {
	s := newCheckStack(t)
	body := `{"rules":[{"slug":"r","limit":10,"window":"1m"}],"requests":[{"at_ms":0,"subject":"s"}]}`
	for range 2 {
		a := s.contract.call(s.key, http.MethodPost, "/v1/simulate", body, header{"Idempotency-Key", "k"}).ok(200)
		require.Empty(t, a.header.Get("Idempotency-Replayed"))
	}
}

// A simulation is made of its body alone. Rules, plans, states, overrides and counters with the
// same names, of the caller's tenant and of another one, change nothing in it, and it changes no
// counter.
func TestSimulationIsOfItsBody(t *testing.T) {
	s := newAdminStack(t)
	body := `{"rules":[{"slug":"api","limit":2,"window":"1m"},{"slug":"ip","limit":1,"window":"1m","by":["attributes.ip"],"mode":"shadow"}],
		"plans":[{"slug":"pro","limits":{"api":{"limit":3}}}],
		"subjects":[{"subject":"member","plan":"pro"}],
		"requests":[{"at_ms":0,"subject":"shared"},{"at_ms":0,"subject":"shared","attributes":{"ip":"192.0.2.1"}},{"at_ms":0,"subject":"shared"},{"at_ms":0,"subject":"member","cost":3},
			{"at_ms":0,"subject":"blocked"},{"at_ms":0,"subject":"shared","plan":"pro"}]}`
	simulate := func(key string) string {
		return string(s.call(key, http.MethodPost, "/v1/simulate", body).ok(200).body)
	}
	want := simulate(s.key)
	require.Contains(t, want, `"requests":6,"allowed":5,"denied":1`)
	require.Equal(t, want, simulate(s.other))

	window := limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
	for actor, key := range map[tenants.Actor]string{s.a: s.key, s.b: s.other} {
		r := limit.NewRule("api")
		r.Limit, r.Window = 1, window
		_, err := s.store.CreateRule(t.Context(), actor, r)
		require.NoError(t, err)
		_, err = s.store.CreatePlan(t.Context(), actor, tenants.Plan{Slug: "pro", Default: true, Limits: map[string]limit.Limit{"api": {Limit: 1}}})
		require.NoError(t, err)
		_, _, err = s.store.PutSubject(t.Context(), actor, tenants.Subject{Subject: "blocked", State: check.Blocked}, tenants.Match{})
		require.NoError(t, err)
		_, _, err = s.store.PutOverride(t.Context(), actor, "member", tenants.Override{Rule: "api", Limit: limit.Limit{Limit: 1}}, tenants.Match{})
		require.NoError(t, err)
		s.call(key, http.MethodPost, "/v1/check", obj{"subject": "shared"}).ok(200)
		s.call(key, http.MethodPost, "/v1/check", obj{"subject": "shared"}).ok(429)
	}
	require.Equal(t, want, simulate(s.key))
	require.Equal(t, want, simulate(s.other))
	for _, key := range []string{s.key, s.other} {
		s.call(key, http.MethodPost, "/v1/check", obj{"subject": "member"}).ok(200)
	}

	// What only the stored configuration has is not found.
	for _, wrong := range []string{
		`{"rules":[{"slug":"other","limit":2,"window":"1m"}],"requests":[{"at_ms":0,"subject":"s","plan":"pro"}]}`,
		`{"rules":[{"slug":"other","limit":2,"window":"1m"}],"plans":[{"slug":"p","limits":{"api":{"limit":1}}}],"requests":[{"at_ms":0,"subject":"s"}]}`,
		`{"rules":[{"slug":"other","limit":2,"window":"1m"}],"subjects":[{"subject":"member","overrides":{"api":{"limit":1}}}],"requests":[{"at_ms":0,"subject":"s"}]}`,
	} {
		s.call(s.key, http.MethodPost, "/v1/simulate", wrong).problem(http.StatusUnprocessableEntity, codeInvalidRequest)
	}
}
