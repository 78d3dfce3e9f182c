package main

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

// pagesGoal is the limit of the p99 of the dashboard's pages, measured at the server.
const pagesGoal = 50 * time.Millisecond

// pagesOptions are the options of the run that measures the dashboard: the sizes of one tenant.
type pagesOptions struct {
	wanted   bool
	rules    int
	subjects int
	requests int // for each page
}

func (o pagesOptions) validate() error {
	switch {
	case o.rules < 1 || o.rules > 1000:
		return errors.New("-pages-rules: must be 1 to 1000")
	case o.subjects < 10 || o.subjects > 10_000_000:
		return errors.New("-pages-subjects: must be 10 to 10000000")
	case o.requests < 100 || o.requests > 100_000:
		return errors.New("-pages-requests: must be 100 to 100000")
	}
	return nil
}

// smallTenant is the number of subjects of another tenant, enough for a second page.
const smallTenant = 500

// load returns the sizes of the deployment: the tenant, and a small one.
func (o pagesOptions) load() adminOptions {
	return adminOptions{tenants: 2, rules: o.rules + 1, subjects: o.subjects + smallTenant, one: true}
}

// sight is a page, with the path of its n-th request.
type sight struct {
	name string
	path func(n int) string
}

// sights returns the pages of the dashboard whose time may depend on the size of a tenant.
func (o pagesOptions) sights() []sight {
	fixed := func(path string) func(int) string { return func(int) string { return path } }
	rule := func(after string) func(int) string {
		return func(n int) string { return fmt.Sprintf("/rules/rule-%d%s", n%o.rules, after) }
	}
	return []sight{
		{"sessions, for comparison", fixed("/sessions")},
		{"overview", fixed("/")},
		{"rules", fixed("/rules")},
		{"rules by prefix", func(n int) string { return fmt.Sprintf("/rules?q=rule-%d", n%10) }},
		{"a rule", rule("")},
		{"rule history", rule("/history")},
		{"rule editor", rule("/edit")},
		{"plans", fixed("/plans")},
		{"subjects", fixed("/subjects")},
		{"subjects by prefix, 10 matches", func(n int) string { return fmt.Sprintf("/subjects?q=user_%07d", n%max(1, o.subjects/10)) }},
		{"blocked subjects, 1 of 500", fixed("/subjects?state=blocked")},
		{"a subject", func(n int) string { return "/subjects/" + subjectName(n%o.subjects) }},
		{"an unregistered subject", func(n int) string { return fmt.Sprintf("/subjects/unknown-%d", n) }},
		{"search", func(n int) string { return fmt.Sprintf("/search?q=user_%06d", n%max(1, o.subjects/100)) }},
		{"API keys", fixed("/keys")},
		{"members", fixed("/members")},
	}
}

// measurePages loads a tenant of the sizes in o, and prints the latency of its pages.
func measurePages(ctx context.Context, o options) error {
	s := &stage{servers: map[string]*server{}, timeout: o.timeout}
	defer s.close()
	progress("building and starting the servers")
	for _, step := range []func(context.Context) error{s.makeFolder, s.build, s.createDatabase, s.startRedis, s.migrate, s.startWeir} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	load := o.pages.load()
	owners, err := s.loadAdmin(ctx, load)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if err := s.loadBusy(ctx, owners[0], o.pages.subjects); err != nil {
		return fmt.Errorf("load usage: %w", err)
	}
	if err := s.restartWeir(ctx); err != nil { // it reads at its start what was written directly to Postgres
		return err
	}
	cookie, err := s.signIn(ctx, owners[0])
	if err != nil {
		return fmt.Errorf("sign in: %w", err)
	}
	b := newBrowser(s.servers[weirName].http, cookie)
	defer b.client.CloseIdleConnections()
	progress("reading the tenant's policy for the first time")
	if _, _, err := b.get(ctx, "/subjects/"+subjectName(0)); err != nil {
		return err
	}
	var views []view
	for _, page := range o.pages.sights() {
		progress("measuring: %s", page.name)
		v, err := b.time(ctx, page, o.pages.requests)
		if err != nil {
			return fmt.Errorf("%s: %w%s", page.name, err, s.servers[weirName].lastWords())
		}
		views = append(views, v)
	}
	f, err := s.facts(ctx, options{rounds: 1})
	if err != nil {
		return err
	}
	fmt.Print(pagesReport(f, o.pages, views))
	return nil
}

// Usage of the tenant: lists as long as Weir keeps them, of the days that the pages read.
const busyDays, busyListed = 31, 100

// loadBusy writes the busiest and the most denied subjects of each day, all of them different ones.
func (s *stage) loadBusy(ctx context.Context, t *owner, subjects int) error {
	type listed struct {
		Subject string `json:"s"`
		Error   int64  `json:"e,omitempty"`
		Allowed int64  `json:"a,omitempty"`
		Denied  int64  `json:"d,omitempty"`
	}
	conn, err := s.connect(ctx, s.database)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	random := rand.New(rand.NewPCG(7, 2))
	today := time.Now().UTC().Truncate(24 * time.Hour)
	for day := range busyDays {
		var top struct {
			Checks []listed `json:"checks"`
			Denied []listed `json:"denied"`
		}
		for range busyListed {
			count := 1000 + random.Int64N(1_000_000)
			top.Checks = append(top.Checks, listed{subjectName(random.IntN(subjects)), count / 20, count, count / 10})
			top.Denied = append(top.Denied, listed{subjectName(random.IntN(subjects)), count / 90, 0, count / 10})
		}
		_, err := conn.Exec(ctx, `INSERT INTO usage_subjects (tenant_id, grain, start, top) SELECT id, 'day', $2, $3 FROM tenants WHERE slug = $1
			ON CONFLICT (tenant_id, grain, start) DO UPDATE SET top = excluded.top`, t.slug, today.AddDate(0, 0, -day), top)
		if err != nil {
			return err
		}
	}
	_, err = conn.Exec(ctx, "ANALYZE usage_subjects")
	return err
}

// signIn creates an owner of the tenant with a session, and returns its cookie.
func (s *stage) signIn(ctx context.Context, t *owner) (string, error) {
	conn, err := s.connect(ctx, s.database)
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	secret := sha256.Sum256([]byte("a session of the bench"))
	hash := sha256.Sum256(secret[:])
	person, session := rowID(rowPerson, 0, 0), rowID(rowSession, 0, 0)
	for _, step := range []struct {
		statement string
		args      []any
	}{
		{"INSERT INTO people (id, email) VALUES ($1, 'bench@weir.example')", []any{person}},
		{"INSERT INTO members (tenant_id, person_id, role) SELECT id, $1, 'owner' FROM tenants WHERE slug = $2", []any{person, t.slug}},
		{"INSERT INTO sessions (token_hash, id, person_id, created_at, seen_at) VALUES ($1, $2, $3, now(), now())", []any{hash[:], session, person}},
	} {
		if _, err := conn.Exec(ctx, step.statement, step.args...); err != nil {
			return "", err
		}
	}
	return "__Host-weir=" + base64.RawURLEncoding.EncodeToString(secret[:]), nil
}

// browser requests pages with a session, over one connection, compressed as for browsers.
type browser struct {
	url, cookie string
	client      *http.Client
}

func newBrowser(address, cookie string) *browser {
	return &browser{"http://" + address, cookie, &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// get requests a page and returns its time and its size in bytes.
func (b *browser) get(ctx context.Context, path string) (time.Duration, int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.url+path, nil)
	if err != nil {
		return 0, 0, err
	}
	request.Header.Set("Cookie", b.cookie)
	request.Header.Set("Accept-Encoding", "gzip")
	begin := time.Now()
	response, err := b.client.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	took := time.Since(begin)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s, to %q", path, response.Status, response.Header.Get("Location"))
	}
	return took, len(body), err
}

// view is the result for a page.
type view struct {
	timing
	bytes int // of the largest
}

func (b *browser) time(ctx context.Context, page sight, requests int) (view, error) {
	random := rand.New(rand.NewPCG(7, 1)) // the same requests in each run
	v, took := view{}, make([]time.Duration, requests)
	for i := range took {
		var bytes int
		var err error
		if took[i], bytes, err = b.get(ctx, page.path(random.IntN(1<<30))); err != nil {
			return v, err
		}
		v.bytes = max(v.bytes, bytes)
	}
	slices.Sort(took)
	v.timing = timing{lookup: lookup{name: page.name}, p50: took[requests/2], p99: took[(requests*99-1)/100], most: took[requests-1]}
	return v, nil
}

// pagesReport returns the table, with the facts needed to judge it.
func pagesReport(f facts, o pagesOptions, views []view) string {
	var b strings.Builder
	for _, fact := range f[:3] { // the others are about checks
		fmt.Fprintf(&b, "- %s\n", fact)
	}
	fmt.Fprintf(&b, "- A tenant with %s rules and %s subjects, and full lists of the busiest subjects of %d days.\n",
		thousands(float64(o.rules)), thousands(float64(o.subjects)), busyDays)
	fmt.Fprintf(&b, "- %s sequential requests per page; the goal is a p99 under %s ms.\n",
		thousands(float64(o.requests)), millis(float64(pagesGoal.Microseconds())))
	b.WriteString("\n| page | KB, compressed | p50 ms | p99 ms | max ms | goal |\n|---|---:|---:|---:|---:|---|\n")
	for _, v := range views {
		reached := "yes"
		if v.p99 >= pagesGoal {
			reached = "no"
		}
		fmt.Fprintf(&b, "| %s | %.1f | %s | %s | %s | %s |\n", v.name, float64(v.bytes)/1024,
			millis(float64(v.p50.Microseconds())), millis(float64(v.p99.Microseconds())), millis(float64(v.most.Microseconds())), reached)
	}
	return b.String()
}
