package api

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/budget"
	"weir/internal/check"
	"weir/internal/leases"
	"weir/internal/limit"
	"weir/internal/once"
	"weir/internal/testenv"
)

// withBudget serves with a bound of the bytes of records of each tenant.
func (s *checkStack) withBudget(t *testing.T, bytes int64) *budget.Budget {
	t.Helper()
	client := testenv.RedisClient(t)
	b := budget.New(budget.Options{
		Client: client, Prefix: func(limit.TenantID) string { return "w{ab}" }, Instances: func() int { return 1 },
		// Nothing is read from Redis in these tests, so half of the bound may be used.
		Bound: func(limit.TenantID) (int64, bool) { return 2 * bytes, true },
	})
	s.registry = prometheus.NewRegistry()
	s.deps = s.redisDeps(t, time.Second)
	s.deps.Budget = b
	s.deps.Once = once.New(once.Options{Client: client, Timeout: testenv.RedisTimeout, Wait: time.Second, Budget: b})
	s.deps.Leases = leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	s.serve(Config{Headers: bothStyles}, s.deps)
	return b
}

// refusedRecord asserts that a request is refused because of its record.
func (a answer) refusedRecord() {
	a.t.Helper()
	a.problem(http.StatusTooManyRequests, codeTenantRecordsExceeded)
	require.Equal(a.t, decisionNone, a.header.Get(decisionHeader))
	seconds, err := strconv.Atoi(a.header.Get("Retry-After"))
	require.NoError(a.t, err)
	require.True(a.t, seconds >= 1 && seconds <= 68, "%d s", seconds)
}

// A tenant with as many bytes of records as it may gets no new ones: its checks with a new key are
// refused and not counted. Repeats, checks without a key and other tenants are answered as ever.
func TestRecordsOfChecksAreBounded(t *testing.T) {
	s := newCheckStack(t)
	s.withBudget(t, 20_000)
	body := func(i int) string { return fmt.Sprintf(`{"subject":"u%d","resource":"bulk"}`, i) }
	n := 0
	for ; s.check(body(n), withKey("k"+strconv.Itoa(n))).status == http.StatusOK; n++ {
		require.Less(t, n, 100)
	}
	require.Greater(t, n, 10)
	s.check(body(n), withKey("k"+strconv.Itoa(n))).refusedRecord()
	s.post("/v1/check/batch", entries(3, body(n)), withKey("batch")).refusedRecord()
	require.EqualValues(t, 1_000_000, s.remaining(fmt.Sprintf("u%d", n), "bulk"), "nothing was counted")
	s.check(body(n)).decision(200)
	require.True(t, s.check(body(0), withKey("k0")).decision(200).Replayed)
	s.check(body(1), withKey("k0")).problem(422, codeIdempotencyKeyReused)

	c := s.dial()
	c.send(s.laneRequest(body(n), "Idempotency-Key: lane"))
	a := c.receive()
	a.refusedRecord()

	require.False(t, s.contract.call(s.other, "POST", "/v1/check", body(0), withKey("k0")).decision(200).Replayed)
}

// randomName returns a subject that cannot be compressed much.
func randomName() string {
	b := make([]byte, 128)
	_, _ = rand.Read(b)
	return hex.EncodeToString(b)
}

// batchOfMany returns a batch for so many random subjects.
func batchOfMany(n int, resource string) string {
	checks := make([]string, n)
	for i := range checks {
		checks[i] = fmt.Sprintf(`{"subject":%q,"resource":%q}`, randomName(), resource)
	}
	return `{"checks":[` + strings.Join(checks, ",") + `]}`
}

// A batch whose record does not fit is refused and not counted, also if it is the first one of its
// tenant. Before, it reserved a kilobyte, and many at once exceeded the bound 40 times.
func TestLongRecordsAreReserved(t *testing.T) {
	s := newCheckStack(t)
	b := s.withBudget(t, 20_000)
	s.post("/v1/check/batch", batchOfMany(100, "bulk"), withKey("long")).refusedRecord()
	s.post("/v1/check/batch", batchOfMany(20, "bulk"), withKey("short")).ok(200)
	bytes, _ := b.Alive()
	require.LessOrEqual(t, bytes, int64(20_000))
}

// The record of a check needs no more than it reserves.
func TestRecordsNeedWhatTheyReserve(t *testing.T) {
	s := newCheckStack(t)
	_ = manyRules(t, s)
	b := s.withBudget(t, 64<<20)
	policy, err := s.deps.Policies.Get(t.Context(), s.actor.TenantID())
	require.NoError(t, err)
	for i, body := range []string{
		`{"subject":"a"}`, fmt.Sprintf(`{"subject":%q}`, randomName()), `{"subject":"a","resource":"many"}`, `{"subject":"a","explain":true}`,
		batchOf(2, `{"subject":"a","resource":"many"}`), batchOf(10, `{"subject":"a","resource":"many","explain":true}`),
		batchOf(100, `{"subject":"a","resource":"many"}`), batchOfMany(2, "bulk"), batchOfMany(100, "bulk"), batchOfMany(100, "many"),
	} {
		path, checks := "/v1/check", []check.Request{}
		if strings.HasPrefix(body, `{"checks"`) {
			path = "/v1/check/batch"
			var all struct{ Checks []check.Request }
			require.NoError(t, json.Unmarshal([]byte(body), &all))
			checks = all.Checks
		} else {
			checks = append(checks, check.Request{})
			require.NoError(t, json.Unmarshal([]byte(body), &checks[0]))
		}
		for j := range checks {
			if checks[j].Resource == "" {
				checks[j].Resource = "default"
			}
		}
		before, _ := b.Alive()
		require.Equal(t, 200, s.post(path, body, withKey("k"+strconv.Itoa(i))).status)
		after, _ := b.Alive()
		most := budget.Size(len("w{}once")+2*16, 100+max(recordBytes(policy, checks), 1<<10))
		require.LessOrEqual(t, after-before, most, "%.80s", body)
	}
}

// A check that is refused for another reason leaves no record, and takes nothing of the budget.
func TestRefusedChecksTakeNoBudget(t *testing.T) {
	s := newCheckStack(t)
	b := s.withBudget(t, 5000)
	s.check(`{"subject":"a"}`, withKey("first")).decision(200)
	before, _ := b.Alive()
	require.Positive(t, before)
	for i := range 50 {
		s.check(`{"subject":"a","plan":"gold"}`, withKey("k"+strconv.Itoa(i))).problem(422, codeUnknownPlan)
		require.True(t, s.check(`{"subject":"a"}`, withKey("first")).decision(200).Replayed)
		s.check(`{"subject":"b"}`, withKey("first")).problem(422, codeIdempotencyKeyReused)
	}
	after, _ := b.Alive()
	require.Equal(t, before, after)
	s.check(`{"subject":"a"}`, withKey("second")).decision(200)
}

// A lease whose record would exceed the bound is refused, and charges nothing. Leases that exist
// can be returned.
func TestRecordsOfLeasesAreBounded(t *testing.T) {
	s, _ := leaseStack(t)
	s.withBudget(t, 5000)
	var last LeaseAnswer
	n := 0
	for ; ; n++ {
		require.Less(t, n, 100)
		a := s.post(leasesPath, fmt.Sprintf(`{"subject":"u%d","resource":"leased","units":100}`, n))
		if a.status != http.StatusOK {
			a.refusedRecord()
			break
		}
		last = a.lease()
	}
	require.Greater(t, n, 3)
	require.EqualValues(t, 1000, s.remaining(fmt.Sprintf("u%d", n), "leased"), "nothing was charged")
	require.Equal(t, http.StatusNoContent, s.giveBack(last.Lease, `{"units":100}`).status)
	require.EqualValues(t, 1000, s.remaining(fmt.Sprintf("u%d", n-1), "leased"))
	s.check(`{"subject":"u","resource":"leased"}`).decision(200)
}

// The record of a lease has the attributes by which rules count, and no others. Leases of all kinds
// of rules can be returned by it, and what the client reports counts for them.
func TestRecordOfALease(t *testing.T) {
	s, seen := leaseStack(t)
	windows := func(a limit.Algorithm) limit.Rule {
		r := leasedRule(strings.ReplaceAll(a.String(), "_", "-"), 1000)
		r.Resource, r.Algorithm, r.By = "kinds:"+r.Slug, a, []string{"subject", "attributes.ip"}
		return r
	}
	month, buckets := windows(limit.FixedWindow), windows(limit.SlidingWindowBuckets)
	month.Slug, month.Resource = "month", "kinds:month"
	month.Window = limit.Window{Duration: limit.Duration{Text: "month"}, Calendar: limit.CalendarMonth}
	buckets.Precision = limit.Duration{Text: "1d", MS: 86_400_000}
	rules := []limit.Rule{windows(limit.FixedWindow), month, windows(limit.SlidingWindowCounter), buckets, windows(limit.TokenBucket), windows(limit.LeakyBucket)}
	all := leasedRule("all", 100_000)
	all.Resource, all.By = "kinds:*", []string{"attributes.region"}
	for _, r := range append(rules, all) {
		_, err := s.db.Store.CreateRule(t.Context(), s.actor, r)
		require.NoError(t, err, r.Slug)
	}
	b := s.withBudget(t, 1<<20)
	attributes := map[string]string{"ip": "192.0.2.1", "region": strings.Repeat("r", 256)}
	for i := range 14 {
		attributes[fmt.Sprintf("unused_%d", i)] = strings.Repeat("x", 256)
	}
	text, err := json.Marshal(attributes)
	require.NoError(t, err)
	req := check.Request{Subject: "u"}
	for name := range attributes {
		req.Attributes = append(req.Attributes, check.Attribute{Name: name})
	}
	policy, err := s.deps.Policies.Get(t.Context(), s.actor.TenantID())
	require.NoError(t, err)
	for _, r := range rules {
		remaining := func() int64 {
			d := s.check(fmt.Sprintf(`{"subject":"u","resource":%q,"cost":0,"attributes":%s}`, r.Resource, text)).decision(200)
			require.Len(t, d.Rules, 2)
			return min(*d.Rules[0].Remaining, *d.Rules[1].Remaining)
		}
		before, _ := b.Alive()
		l := s.post(leasesPath, fmt.Sprintf(`{"subject":"u","resource":%q,"units":100,"attributes":%s}`, r.Resource, text)).lease()
		after, _ := b.Alive()
		require.Less(t, after-before, int64(1000), "the record of %s", r.Slug)
		req.Resource = r.Resource
		require.LessOrEqual(t, after-before, s.deps.Leases.Size(leaseRecordBytes(policy, &req)), "of %s", r.Slug)
		require.EqualValues(t, 100, l.Units, r.Slug)
		left := remaining()
		require.LessOrEqual(t, left, int64(900), r.Slug)
		require.Equal(t, http.StatusNoContent, s.giveBack(l.Lease, `{"units":40,"allowed":60}`).status, r.Slug)
		require.InDelta(t, left+40, remaining(), 2, r.Slug) // a bucket keeps what it drains
		reports := seen.of("u")
		require.Equal(t, reported{"u", true, 60, 60, 2}, reports[len(reports)-2], "%s counts by both attributes", r.Slug)
	}
}

// A record of a version that stored all attributes and numbers can be read.
func TestRecordOfAnEarlierVersion(t *testing.T) {
	s, seen := leaseStack(t)
	s.withBudget(t, 1<<20)
	l := s.post(leasesPath, `{"subject":"u","resource":"leased","units":100}`).lease()
	stored, err := s.deps.Leases.Take(t.Context(), s.actor.TenantID(), l.Lease, leases.NewToken())
	require.NoError(t, err)
	record := &leaseRecord{}
	require.NoError(t, json.Unmarshal(stored, record))
	n := record.Grant.Parts[0].Numbers
	old := obj{
		"Subject": "u", "Resource": "leased", "Plan": "", "Attributes": []obj{{"Name": "ip", "Value": "192.0.2.1"}},
		"Grant": obj{"Units": 100, "Life": 249_000_000, "Parts": []obj{{
			"Key": record.Grant.Parts[0].Key, "ID": record.Grant.Parts[0].ID, "Ground": record.Grant.Parts[0].Ground, "Spare": 0, "Numbers": obj{
				"Algorithm": n.Algorithm, "Limit": n.Limit, "WindowMS": n.WindowMS, "Calendar": 0, "Overage": false, "Burst": n.Burst,
				"PrecisionMS": 0, "PenaltyMS": 0, "Bounds": nil,
			},
		}}},
	}
	text, err := json.Marshal(old)
	require.NoError(t, err)
	require.Less(t, len(stored), len(text))
	require.NoError(t, s.deps.Leases.Put(t.Context(), s.actor.TenantID(), "lease_old", text, time.Minute))
	require.Equal(t, http.StatusNoContent, s.giveBack("lease_old", `{"units":40,"allowed":60}`).status)
	require.EqualValues(t, 940, s.remaining("u", "leased"))
	require.Contains(t, seen.of("u"), reported{"u", true, 60, 60, 1})
}

// The problem of a full budget is the same for all requests, and names the time to wait.
func TestFullBudget(t *testing.T) {
	t.Parallel()
	p := problemOf(errors.Join(errors.New("inner"), &budget.FullError{Wait: 3500 * time.Millisecond}))
	require.Equal(t, http.StatusTooManyRequests, p.Status)
	require.Equal(t, 4, p.retryAfter)
}

// faultyObserver panics at the first decision.
type faultyObserver struct{ *faults }

func (o faultyObserver) Decided(limit.TenantID, *check.Request, *check.Decision, time.Time) {
	o.at("check")
}

// A check whose decision panics leaves nothing of the budget reserved. Its repeat is not counted,
// because it is unknown whether the check was.
func TestPanicOfACheckWithAKey(t *testing.T) {
	s := newCheckStack(t)
	f := &faults{}
	f.stage.Store("check")
	s.observers = []check.Observer{faultyObserver{f}}
	b := s.withBudget(t, 2000) // one check at a time fits
	deps := s.deps
	deps.Metrics = NewMetrics(prometheus.NewRegistry())
	deps.Once = once.New(once.Options{Client: testenv.RedisClient(t), Timeout: testenv.RedisTimeout, Wait: time.Millisecond, Budget: b})
	s.serve(Config{Headers: bothStyles}, deps)

	s.check(`{"subject":"a"}`, withKey("first")).fault(true)
	require.Empty(t, f.stage.Load())
	s.check(`{"subject":"a"}`, withKey("first")).problem(http.StatusConflict, codeIdempotencyKeyInUse)
	require.False(t, s.check(`{"subject":"a"}`, withKey("second")).decision(200).Replayed)
}
