package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/leases"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// leasedRule returns a leased rule whose window does not end during a test.
func leasedRule(resource string, lim int64) limit.Rule {
	return limit.Rule{
		Slug: resource, Name: resource, Resource: resource, Algorithm: limit.FixedWindow, Limit: lim, Consistency: limit.Leased,
		Window: limit.Window{Duration: limit.Duration{Text: "30d", MS: 30 * 86_400_000}}, By: []string{"subject"},
	}
}

// reports records what observers are told.
type reports struct {
	mu   sync.Mutex
	list []reported
}

type reported struct {
	subject string
	allowed bool
	checks  int64
	cost    int64
	rules   int
}

func (r *reports) Decided(_ limit.TenantID, req *check.Request, d *check.Decision, _ time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, reported{strings.Clone(req.Subject), d.Allowed, d.Checks(), d.Cost, len(d.Rules)})
}

func (r *reports) of(subject string) (out []reported) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, one := range r.list {
		if one.subject == subject {
			out = append(out, one)
		}
	}
	return out
}

// leaseStack is a checkStack with leased rules.
func leaseStack(t *testing.T) (*checkStack, *reports) {
	t.Helper()
	seen := &reports{}
	s := newCheckStack(t)
	long, watched := leasedRule("long", 1000), leasedRule("watched", 8)
	long.Lease, watched.Mode = limit.Duration{Text: "10s", MS: 10_000}, limit.Shadow
	for _, r := range []limit.Rule{leasedRule("leased", 1000), leasedRule("small", 9), long, watched} {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, r)
		require.NoError(t, err)
	}
	first := leasedRule("first-hit", 1000)
	first.Resource, first.Algorithm = "mixed", limit.FixedWindowFirstHit
	strict := leasedRule("strict", 1000)
	strict.Resource, strict.Consistency = "mixed", limit.Strict
	for _, r := range []limit.Rule{first, strict} {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, r)
		require.NoError(t, err)
	}
	s.observers = append(s.observers, seen)
	s.registry = prometheus.NewRegistry()
	s.deps = s.redisDeps(t, time.Second)
	s.serve(Config{Headers: bothStyles}, s.deps)
	return s, seen
}

// lease returns a granted lease.
func (a answer) lease() (l LeaseAnswer) {
	a.t.Helper()
	require.Equal(a.t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(a.t, decisionAllow, a.header.Get(decisionHeader))
	require.NoError(a.t, json.Unmarshal(a.body, &l), "%s", a.body)
	return l
}

func (s *checkStack) giveBack(id, body string) answer {
	s.t.Helper()
	return s.post(leasesPath+"/"+id+"/return", body)
}

// Units are charged when they are leased, at most a quarter of what remains. What is returned is
// available again, once.
func TestLease(t *testing.T) {
	s, seen := leaseStack(t)
	l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":100}`).lease()
	require.EqualValues(t, 100, l.Units)
	require.Positive(t, l.ExpiresInMS)
	require.Less(t, l.ExpiresInMS, limit.LeaseHold.Milliseconds())
	require.Greater(t, s.post(leasesPath, `{"subject":"u","resource":"long","units":100}`).lease().ExpiresInMS, int64(9_900), "the lease of its rule")
	require.EqualValues(t, 100, l.Decision.Cost)
	require.EqualValues(t, 900, *l.Decision.Remaining)
	require.EqualValues(t, 900, s.remaining("u", "leased"))

	all := s.post(leasesPath, `{"subject":"u","resource":"leased","units":1000}`).lease()
	require.EqualValues(t, 900/limit.LeaseShare, all.Units, "a quarter of what remains")

	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":40,"allowed":55,"denied":3,"denied_units":5}`).status)
	require.EqualValues(t, 900-225+40, s.remaining("u", "leased"))
	require.Equal(t, []reported{
		{"u", true, 55, 60, 1}, {"u", false, 3, 5, 0},
	}, seen.of("u")[1:3], "the units that were used, and the reported checks")

	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":40,"allowed":55}`).status, "a repeat")
	require.EqualValues(t, 900-225+40, s.remaining("u", "leased"), "changes nothing")
	counted, err := testutil.GatherAndCount(s.registry, "weir_client_leases_total", "weir_client_lease_units_returned_total")
	require.NoError(t, err)
	require.Equal(t, 2, counted)
}

// Used units are metered although the client does not say how many checks used them. Before, they
// were charged, and missing from invoices.
func TestUsedUnitsOfALeaseAreReported(t *testing.T) {
	s, seen := leaseStack(t)
	for _, c := range []struct {
		body string
		want []reported
	}{{`{"units":40}`, []reported{{"u", true, 1, 60, 1}}}, {`{"units":100}`, nil}, {`{"units":99,"allowed":0}`, []reported{{"u", true, 1, 1, 1}}}} {
		l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":100}`).lease()
		before := len(seen.of("u"))
		require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, c.body).status)
		require.ElementsMatch(t, c.want, seen.of("u")[before:], c.body)
	}
	// A return of more than it had ends a lease, whose units stay charged.
	for _, body := range []string{`{"units":101}`, `{"units":40,"allowed":61}`} {
		l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":100}`).lease()
		before := len(seen.of("u"))
		s.giveBack(l.Lease, body).problem(http.StatusUnprocessableEntity, codeInvalidRequest)
		require.Equal(t, []reported{{"u", true, 1, 100, 1}}, seen.of("u")[before:], body)
	}
}

// A client cannot report so many checks that the sums of usage overflow.
func TestReportedChecksAreBounded(t *testing.T) {
	s, seen := leaseStack(t)
	const most = 1_000_000_000_000_000
	l := s.post(leasesPath, fmt.Sprintf(`{"subject":"u","resource":"unlimited","units":%d}`, most)).lease()
	require.EqualValues(t, most, l.Units, "no rule matches")
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, fmt.Sprintf(`{"units":0,"allowed":%d,"denied":%[1]d,"denied_units":%[1]d}`, most)).status)
	require.Equal(t, []reported{{"u", true, mostReported, most, 0}, {"u", false, mostReported, most, 0}}, seen.of("u"))
}

// Of many concurrent returns of one lease, one counts.
func TestLeaseIsReturnedOnce(t *testing.T) {
	s, _ := leaseStack(t)
	l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":200}`).lease()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if a := s.giveBack(l.Lease, `{"units":200}`); a.status != http.StatusNoContent {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 1000, s.remaining("u", "leased"))
}

// A lease belongs to its tenant: with the key of another one it does not exist.
func TestLeaseOfAnotherTenant(t *testing.T) {
	s, _ := leaseStack(t)
	l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":100}`).lease()
	own := s.key
	s.key = s.other
	s.giveBack(l.Lease, `{"units":100}`).problem(http.StatusNotFound, codeNotFound)
	s.key = own
	s.giveBack(leases.NewID(), `{"units":100}`).problem(http.StatusNotFound, codeNotFound)
	s.giveBack("nonsense", `{"units":100}`).problem(http.StatusNotFound, codeNotFound)
	require.EqualValues(t, 900, s.remaining("u", "leased"))
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":100}`).status)
	require.EqualValues(t, 1000, s.remaining("u", "leased"))
}

// Where a lease cannot be exact, the client is told why, and nothing is charged.
func TestNotLeasable(t *testing.T) {
	s, _ := leaseStack(t)
	a := s.post(leasesPath, `{"subject":"u","resource":"mixed","units":10}`)
	p := a.problem(http.StatusConflict, codeNotLeasable)
	require.Equal(t, decisionNone, a.header.Get(decisionHeader))
	require.Equal(t, "10", a.header.Get("Retry-After"))
	require.Len(t, p.Errors, 2)
	require.ElementsMatch(t, []string{"rule:first-hit", "rule:strict"}, []string{p.Errors[0].Pointer, p.Errors[1].Pointer})

	// A rule that has nothing left to lease now is named, too.
	s.check(`{"subject":"u","resource":"watched","cost":8}`).decision(200)
	a = s.post(leasesPath, `{"subject":"u","resource":"watched","units":10}`)
	p = a.problem(http.StatusConflict, codeNotLeasable)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Len(t, p.Errors, 1)
	require.Equal(t, "rule:watched", p.Errors[0].Pointer)

	s.post(leasesPath, `{"subject":"exempt","resource":"leased","units":10}`).lease() // it acts as in shadow mode

	// Of nine units, a quarter is two; of the rest, it is one, as long as one is left.
	require.EqualValues(t, 2, s.post(leasesPath, `{"subject":"u","resource":"small","units":9}`).lease().Units)
	for left := int64(6); left >= 0; left-- {
		require.EqualValues(t, 1, s.post(leasesPath, `{"subject":"u","resource":"small","units":9}`).lease().Units)
		require.EqualValues(t, left, s.remaining("u", "small"))
	}
	d := s.post(leasesPath, `{"subject":"u","resource":"small","units":9}`).decision(http.StatusTooManyRequests)
	require.EqualValues(t, 0, *d.Remaining)

	// No rule matches, so there is nothing to charge.
	l := s.post(leasesPath, `{"subject":"u","resource":"unlimited","units":5}`).lease()
	require.EqualValues(t, 5, l.Units)
	require.Nil(t, l.Decision.Rule)
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":5}`).status)
}

// Where nothing is left, the answer is the denial of a check.
func TestLeaseDenied(t *testing.T) {
	s, seen := leaseStack(t)
	s.check(`{"subject":"u","resource":"small","cost":9}`).decision(200)
	a := s.post(leasesPath, `{"subject":"u","resource":"small","units":50}`)
	d := a.decision(http.StatusTooManyRequests)
	require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.EqualValues(t, 1, d.Cost)
	require.EqualValues(t, 0, *d.Remaining)
	require.Equal(t, "RATE_LIMIT_EXCEEDED", d.Error.Code)
	last := seen.of("u")
	require.Equal(t, reported{"u", false, 1, 1, 1}, last[len(last)-1])

	d = s.post(leasesPath, `{"subject":"blocked","resource":"leased","units":5}`).decision(http.StatusTooManyRequests)
	require.Equal(t, "SUBJECT_BLOCKED", d.Error.Code)
}

// Bodies are read as strictly as those of checks.
func TestLeaseBodies(t *testing.T) {
	s, _ := leaseStack(t)
	for body, pointer := range map[string]string{
		`{"subject":"u"}`:                                       "/units",
		`{"subject":"u","units":0}`:                             "/units",
		`{"subject":"u","units":1000000000000001}`:              "/units",
		`{"subject":"u","units":-1}`:                            "/units",
		`{"subject":"u","units":"1"}`:                           "/units",
		`{"units":1}`:                                           "/subject",
		`{"subject":"","units":1}`:                              "/subject",
		`{"subject":"u","resource":"","units":1}`:               "/resource",
		`{"subject":"u","units":1,"attributes":{"subject":""}}`: "/attributes/subject",
	} {
		require.Equal(t, []string{pointer}, s.post(leasesPath, body).pointers(422, codeInvalidRequest), body)
	}
	s.post(leasesPath, `{"subject":"u","units":1,"plan":"none"}`).problem(422, codeUnknownPlan)
	s.post(leasesPath, `{"subject":"u","units":1,"plan":"theirs"}`).problem(422, codeUnknownPlan)
	for _, field := range []string{"cost", "dry_run", "explain", "Units"} {
		s.post(leasesPath, fmt.Sprintf(`{"subject":"u","units":1,%q:1}`, field)).problem(400, codeUnknownField)
	}
	s.post(leasesPath, `{"subject":"u","units":1,"units":1}`).problem(400, codeDuplicateField)
	s.check(`{"subject":"u","units":1}`).problem(400, codeUnknownField)

	l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":10}`).lease()
	for body, pointer := range map[string]string{
		`{}`: "/units", `{"units":-1}`: "/units", `{"units":null}`: "/units", `{"units":1,"denied":2,"denied_units":1}`: "/denied_units",
	} {
		require.Equal(t, []string{pointer}, s.giveBack(l.Lease, body).pointers(422, codeInvalidRequest), body)
	}
	s.giveBack(l.Lease, `{"units":1,"more":1}`).problem(400, codeUnknownField)
	s.giveBack(l.Lease, `{"units":1,"units":1}`).problem(400, codeDuplicateField)
	s.giveBack(l.Lease, `{"units":1} {}`).problem(400, codeMalformedJSON)
	require.EqualValues(t, 990, s.remaining("u", "leased"))
	// More than the lease had ends it, and nothing is returned.
	require.Equal(t, []string{"/units"}, s.giveBack(l.Lease, `{"units":11}`).pointers(422, codeInvalidRequest))
	require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":10}`).status)
	require.EqualValues(t, 990, s.remaining("u", "leased"))
	l = s.post(leasesPath, `{"subject":"u","resource":"leased","units":10}`).lease()
	require.Equal(t, []string{"/allowed"}, s.giveBack(l.Lease, `{"units":5,"allowed":6}`).pointers(422, codeInvalidRequest))
}

// A lease needs what a check needs: the scope, the address, the resource.
func TestLeaseRights(t *testing.T) {
	s, _ := leaseStack(t)
	create := func(scope tenants.Scope, b tenants.KeyBounds) string {
		_, key, err := s.db.Store.CreateKey(t.Context(), s.actor, tenants.NewAPIKey{Name: "bound", Scopes: []tenants.Scope{scope}, Bounds: b})
		require.NoError(t, err)
		return key.Secret()
	}
	l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":10}`).lease()
	for key, code := range map[string]string{
		create(tenants.ScopeWrite, tenants.KeyBounds{}):                                    codeInsufficientScope,
		create(tenants.ScopeCheck, tenants.KeyBounds{Addresses: []string{"192.0.2.0/24"}}): codeAddressNotAllowed,
	} {
		s.key = key
		s.post(leasesPath, `{"subject":"u","resource":"leased","units":10}`).problem(http.StatusForbidden, code)
		s.giveBack(l.Lease, `{"units":10}`).problem(http.StatusForbidden, code)
	}
	s.key = create(tenants.ScopeCheck, tenants.KeyBounds{Resources: []string{"orders:*"}})
	s.post(leasesPath, `{"subject":"u","resource":"leased","units":10}`).problem(http.StatusForbidden, codeResourceNotAllowed)
	s.key = "nonsense"
	s.post(leasesPath, `{"subject":"u","resource":"leased","units":10}`).problem(http.StatusUnauthorized, codeMalformedKey)
}
