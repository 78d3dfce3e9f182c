package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/tests/harness"
)

var securityRows = []row{
	{id: "S1", fault: "Arbitrary bytes at each parser", goal: "no crash, no 5xx",
		why: "20 fuzz targets: `make fuzz` runs each for 30 s, and `make test` their seeds."},
	{id: "S2", fault: "Guesses of a password", goal: "≤ 10 in 15 minutes per account and address, ≤ 50 per address and hour, ≤ 100 per account and day, also without Redis",
		why: "`TestLoginLimit`, `TestLoginLimitsOfAddressAndAccount` and `TestLoginLimitIsShared` in `internal/dashboard` count them in `make test`."},
	{id: "S3", fault: "Sign-ins with an email that has a login and with others; checks with a revoked key and with keys that never existed", run: timings,
		goal: "the same status; medians differ by ≤ 2 ms"},
	{id: "S4", fault: "Everything that a deployment writes, searched for secrets", goal: "none found",
		why: "`TestNoSecretIsWrittenAnywhere` in `tests` searches logs, metrics, errors, pages, dumps and process lists in `make test`."},
	{id: "S5", fault: "200 sign-ins at once, from 200 addresses", run: signInsAtOnce,
		goal: "RSS + 128 MiB at most; each gets an answer, a refusal has `Retry-After`; p99 of checks ≤ 1.2 x base; E = 0"},
	{id: "S6", fault: "Dependencies with a known vulnerability", goal: "none with a reachable symbol", why: "`make vulnerabilities`, where the database can be reached."},
	{id: "S7", fault: "The items of ASVS 5.0 that apply", goal: "each names its test or decision",
		why: "[threats.md](threats.md); `TestThreatModelNamesTests` in `tests` finds names without a test."},
	{id: "S8", fault: "Tampered copies of the audit trail", goal: "all found",
		why: "`TestTamperedTrails` in `internal/tenants` changes more than 100 copies in `make test`."},
	{id: "S9", fault: "Random faults for an hour", goal: "all invariants; memory, goroutines, descriptors and connections do not grow", why: "`make soak`: see [Soak](#soak)."},
}

// browserAddress returns one of 2^24 addresses, so that no limit by address is reached.
func browserAddress(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }

// fromAnywhere lets requests name their address, as a proxy does.
var fromAnywhere = harness.Settings{"WEIR_TRUSTED_PROXIES": "127.0.0.0/8", "WEIR_SIGNUP": "invite"}

// submit sends a form from an address, and returns the status and how long it took.
func submit(m *measurement, target string, form url.Values, address string) (status int, took time.Duration) {
	status, _, took = submitted(m, target, form, address)
	return status, took
}

// submitted is submit with the header of the answer.
func submitted(m *measurement, target string, form url.Values, address string) (int, http.Header, time.Duration) {
	request, err := http.NewRequestWithContext(m.Context(), http.MethodPost, target, strings.NewReader(form.Encode()))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.Header.Set("X-Forwarded-For", address)
	began := time.Now()
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		return 0, nil, time.Since(began)
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body) // only the status counts
	return response.StatusCode, response.Header, time.Since(began)
}

// account creates a login with an email.
func (r *rig) account(m *measurement, n int) (email string) {
	m.Helper()
	email = fmt.Sprintf("person_%d@example.com", n)
	stdout, stderr, code := harness.RunProgram(m.T, r.program, r.direct, "signup-link", email)
	require.Zero(m.T, code, stderr)
	status, _ := submit(m, r.nodes[0].url()+strings.TrimSpace(stdout), url.Values{"tenant": {fmt.Sprint("Tenant ", n)}, "password": {"a new horse"}}, browserAddress(n))
	require.Equal(m.T, http.StatusSeeOther, status)
	return email
}

// timings compares what an attacker can measure. The two kinds take turns, so a slow phase of the
// machine is slow for both.
func timings(m *measurement) {
	const accounts, signIns, checks = 20, 1000, 2000
	r := newRig(m.T, with(fromAnywhere))
	var emails []string
	for n := range accounts {
		emails = append(emails, r.account(m, n))
	}
	address := accounts
	signIn := func(email string) (int, time.Duration) {
		address++
		return submit(m, r.nodes[0].url()+"/login", url.Values{"email": {email}, "password": {"another horse"}}, browserAddress(address))
	}
	m.compare("sign-ins", signIns, http.StatusUnauthorized,
		func(n int) (int, time.Duration) { return signIn(emails[n%accounts]) },
		func(n int) (int, time.Duration) { return signIn(fmt.Sprintf("person_%d@example.org", n%accounts)) })

	revoked := r.revokedKey(m)
	check := func(key string) (int, time.Duration) {
		c := &caller{t: m.T, key: key, http: r.probe.http}
		began := time.Now()
		status, _, err := c.try(http.MethodPost, r.nodes[0].url()+"/v1/check", `{"subject":"a","resource":"tally"}`)
		require.NoError(m.T, err)
		return status, time.Since(began)
	}
	m.compare("checks", checks, http.StatusUnauthorized,
		func(int) (int, time.Duration) { return check(revoked) },
		func(int) (int, time.Duration) { return check(tenants.NewKey(tenants.TenantKey).Secret()) })
}

// compare reports by how much the medians of two kinds of requests differ, and counts other
// statuses than the one that both should get.
func (m *measurement) compare(what string, trials, status int, known, unknown func(n int) (int, time.Duration)) {
	m.Helper()
	var took [2][]time.Duration
	others := 0
	for n := range trials {
		for kind, send := range []func(int) (int, time.Duration){known, unknown} {
			got, d := send(n)
			if got != status {
				others++
			}
			took[kind] = append(took[kind], d)
		}
	}
	for kind := range took {
		slices.Sort(took[kind])
	}
	a, b := took[0][trials/2], took[1][trials/2]
	m.none(fmt.Sprintf("%s of 2 x %d with another status", what, trials), others)
	m.within("difference of the medians", max(a-b, b-a), 2*time.Millisecond)
	m.note("Medians of %s: %s known, %s unknown.", what, round(a), round(b))
}

// revokedKey returns a key of a tenant that existed.
func (r *rig) revokedKey(m *measurement) string {
	m.Helper()
	c := r.ordinary("revoked")
	status, body := c.do(http.MethodPost, r.nodes[0].url()+"/v1/keys", `{"name":"short-lived","scopes":["check"]}`)
	require.Equal(m.T, http.StatusCreated, status, "%s", body)
	var created struct{ ID, Secret string }
	require.NoError(m.T, json.Unmarshal(body, &created))
	status, body = c.do(http.MethodDelete, r.nodes[0].url()+"/v1/keys/"+created.ID, "")
	require.Less(m.T, status, 300, "%s", body)
	return created.Secret
}

func signInsAtOnce(m *measurement) {
	const people = 200
	r := newRig(m.T, with(fromAnywhere))
	email := r.account(m, 0)
	l := r.load(r.probing()...)
	l.seconds(4)
	resident, fault := r.most("process_resident_memory_bytes"), l.now()
	var unanswered, refused, unmarked atomic.Int64
	var senders sync.WaitGroup
	for n := range people {
		senders.Go(func() {
			known := email
			if n%2 == 1 {
				known = fmt.Sprintf("person_%d@example.org", n)
			}
			switch status, header, _ := submitted(m, r.nodes[0].url()+"/login", url.Values{"email": {known}, "password": {"another horse"}}, browserAddress(1000+n)); status {
			case http.StatusUnauthorized:
			case http.StatusServiceUnavailable:
				refused.Add(1)
				if header.Get("Retry-After") == "" {
					unmarked.Add(1)
				}
			default:
				unanswered.Add(1)
			}
		})
	}
	senders.Wait()
	end, peak := l.now(), r.most("process_resident_memory_bytes")
	l.seconds(1)
	h := l.stop()
	m.decided(h)
	m.none("sign-ins without an answer", int(unanswered.Load()))
	m.none(fmt.Sprintf("refusals without `Retry-After`, of %d", refused.Load()), int(unmarked.Load()))
	m.number("RSS added", (peak-resident)/(1<<20), 128, " MiB")
	base := h.between(time.Second, fault).p99()
	m.within("p99 of checks", h.between(fault, end).p99(), base*6/5)
	m.note("All at one instance, in %s. Base p99 %s.", round(end-fault), round(base))
}
