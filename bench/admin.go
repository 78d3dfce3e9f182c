package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"
)

// adminGoal is the limit of the p99 of lists and searches.
const adminGoal = 20 * time.Millisecond

// adminCallers is the number of concurrent requests to the admin API: it has few users.
const adminCallers = 2

// adminOptions are the options of the run that measures the admin API.
type adminOptions struct {
	wanted   bool
	tenants  int
	rules    int
	subjects int
	requests int  // for each line of the table
	one      bool // the largest of two tenants has all but one rule and a few subjects
}

func (o adminOptions) validate() error {
	switch {
	case o.tenants < 2 || o.tenants > 100_000:
		return errors.New("-admin-tenants: must be 2 to 100000")
	case o.rules < o.tenants || o.rules > 1000*o.tenants:
		return errors.New("-admin-rules: must be 1 to 1000 for each tenant")
	case o.subjects < 10*o.tenants || o.subjects > 100_000_000:
		return errors.New("-admin-subjects: must be at least 10 for each tenant, and at most 100000000")
	case o.requests < 100 || o.requests > 100_000:
		return errors.New("-admin-requests: must be 100 to 100000")
	}
	return nil
}

// lookup is a row of the table: one kind of request to the admin API.
type lookup struct {
	name  string
	large bool                         // send the requests as the largest tenant, not as one of the others
	path  func(n int, t *owner) string // path of the n-th request
	key   string                       // used instead of the tenant's key
}

// timing is the result of a row.
type timing struct {
	lookup
	p50, p99, most time.Duration
}

// measureAdmin loads a deployment of the sizes in o, and prints the latency of lists and searches.
func measureAdmin(ctx context.Context, o options) error {
	s := &stage{servers: map[string]*server{}, timeout: o.timeout}
	defer s.close()
	progress("building and starting the servers")
	for _, step := range []func(context.Context) error{s.makeFolder, s.build, s.createDatabase, s.startRedis, s.migrate, s.startWeir} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	owners, err := s.loadAdmin(ctx, o.admin)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	var timings []timing
	for _, l := range lookups(s.operator) {
		progress("measuring: %s", l.name)
		t, err := s.timeLookup(ctx, l, owners, o.admin.requests)
		if err != nil {
			return fmt.Errorf("%s: %w%s", l.name, err, s.servers[weirName].lastWords())
		}
		timings = append(timings, t)
	}
	f, err := s.facts(ctx, options{rounds: 1})
	if err != nil {
		return err
	}
	fmt.Print(adminReport(f, o.admin, timings))
	return nil
}

// lookups returns the lists and searches that the dashboard and programs use.
func lookups(operator string) []lookup {
	fixed := func(path string) func(int, *owner) string { return func(int, *owner) string { return path } }
	all := []lookup{
		{name: "`/healthz`, for comparison", path: fixed("/healthz")},
		{name: "tenants, 50, as the operator", path: fixed("/v1/tenants"), key: operator},
	}
	for _, large := range []bool{false, true} {
		of := "; any tenant"
		if large {
			of = "; the largest tenant"
		}
		for _, l := range []lookup{
			{name: "rules, 50", path: fixed("/v1/rules")},
			{name: "rules, 200", path: fixed("/v1/rules?limit=200")},
			{name: "a rule", path: func(n int, t *owner) string { return fmt.Sprintf("/v1/rules/rule-%d", n%t.rules) }},
			{name: "subjects, 50", path: fixed("/v1/subjects")},
			{name: "subjects, 200", path: fixed("/v1/subjects?limit=200")},
			{name: "subjects, 50, a page in the middle", path: func(_ int, t *owner) string { return "/v1/subjects?cursor=" + url.QueryEscape(t.cursor) }},
			{name: "subjects by prefix, 10 matches", path: func(n int, t *owner) string { return fmt.Sprintf("/v1/subjects?prefix=user_%07d", n%(t.subjects/10)) }},
			{name: "subjects by prefix, all match", path: fixed("/v1/subjects?prefix=user_")},
			{name: "subjects by prefix, no match", path: fixed("/v1/subjects?prefix=nobody")},
			{name: "subjects of a plan", path: fixed("/v1/subjects?plan=pro")},
			{name: "blocked subjects, 1 of 500", path: fixed("/v1/subjects?state=blocked")},
			{name: "subjects by label, a third match", path: fixed("/v1/subjects?label=region%3Deu")},
			{name: "subjects by label, 1 of 500 matches", path: fixed("/v1/subjects?label=vip")},
			{name: "subjects by label, no match", path: fixed("/v1/subjects?label=region%3Dmoon")},
			{name: "subjects by plan and label, many match each, none match both", path: fixed("/v1/subjects?plan=pro&label=region%3Deu")},
			{name: "subjects by plan, label and state, 1 of 1 500 matches", path: fixed("/v1/subjects?plan=pro&label=region%3Dus&state=blocked")},
			{name: "subjects by prefix, plan and label, a third match", path: fixed("/v1/subjects?prefix=user_0&plan=pro&label=region%3Dus")},
			{name: "subjects by prefix, plan and label, no match", path: fixed("/v1/subjects?prefix=user_0&plan=pro&label=region%3Deu")},
			{name: "a subject", path: func(n int, t *owner) string { return "/v1/subjects/" + subjectName(n%t.subjects) }},
		} {
			l.name, l.large = l.name+of, large
			all = append(all, l)
		}
	}
	return all
}

// timeLookup measures a row of the table, with a few concurrent callers. The first requests, with
// cold caches, count too.
func (s *stage) timeLookup(ctx context.Context, l lookup, owners []*owner, requests int) (timing, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	api := newAdmin(s.servers[weirName].http)
	defer api.client.CloseIdleConnections()
	took := make([]time.Duration, requests)
	var callers sync.WaitGroup
	for caller := range adminCallers {
		callers.Go(func() {
			random := rand.New(rand.NewPCG(uint64(caller), 1)) // the same requests in each run
			for i := caller; i < requests; i += adminCallers {
				t := owners[0]
				if !l.large {
					t = owners[1+random.IntN(len(owners)-1)]
				}
				key := t.key
				if l.key != "" {
					key = l.key
				}
				var err error
				if took[i], err = api.get(ctx, key, l.path(random.IntN(1<<30), t)); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	callers.Wait()
	if err := context.Cause(ctx); err != nil {
		return timing{}, err
	}
	slices.Sort(took)
	return timing{lookup: l, p50: took[requests/2], p99: took[(requests*99-1)/100], most: took[requests-1]}, nil
}

// get sends one request, and returns the time until the end of the response.
func (a *admin) get(ctx context.Context, key, path string) (time.Duration, error) {
	_, took, err := a.fetch(ctx, key, path)
	return took, err
}

func (a *admin) fetch(ctx context.Context, key, path string) ([]byte, time.Duration, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Authorization", "Bearer "+key)
	begin := time.Now()
	response, err := a.client.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	took := time.Since(begin)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", path, response.Status, answer)
	}
	return answer, took, err
}

// adminReport returns the table, with the facts needed to judge it.
func adminReport(f facts, o adminOptions, timings []timing) string {
	var b strings.Builder
	for _, fact := range f[:3] { // the others are about checks
		fmt.Fprintf(&b, "- %s\n", fact)
	}
	fmt.Fprintf(&b, "- %s tenants, %s rules, %s subjects, of which the largest tenant has %s rules and %s subjects.\n",
		thousands(float64(o.tenants)), thousands(float64(o.rules)), thousands(float64(o.subjects)),
		thousands(float64(o.largestRules())), thousands(float64(o.largestSubjects())))
	fmt.Fprintf(&b, "- %s requests per row, %d concurrent; the goal is a p99 under %s ms.\n",
		thousands(float64(o.requests)), adminCallers, millis(float64(adminGoal.Microseconds())))
	b.WriteString("\n| list or search | p50 ms | p99 ms | max ms | goal |\n|---|---:|---:|---:|---|\n")
	for _, t := range timings {
		reached := "yes"
		if t.p99 >= adminGoal {
			reached = "no"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", t.name,
			millis(float64(t.p50.Microseconds())), millis(float64(t.p99.Microseconds())), millis(float64(t.most.Microseconds())), reached)
	}
	return b.String()
}
