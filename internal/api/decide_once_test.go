package api

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/leases"
	"weir/internal/limit"
	"weir/internal/once"
	"weir/internal/records"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
	"weir/internal/usage"
)

func withKey(key string) header { return header{"Idempotency-Key", key} }

// keyOf returns a key that belongs to one body.
func keyOf(body string) header { return withKey(body[:min(len(body), maxCheckKey)]) }

// A repeat gets the first answer, with the same bytes except for "replayed", and is not counted.
func TestIdempotentCheck(t *testing.T) {
	s := newCheckStack(t)
	for _, body := range []string{
		`{"subject":"a"}`, `{"subject":"b","cost":50}`, `{"subject":"blocked"}`, `{"subject":"c","resource":"none"}`,
		`{"subject":"d","resource":"queue"}`, `{"subject":"e","explain":true,"attributes":{"x":"1","a":"2"}}`,
	} {
		first := s.check(body, keyOf(body))
		again := s.check(body, keyOf(body))
		require.Equal(t, first.status, again.status)
		require.Equal(t, strings.TrimSuffix(string(first.body), "}\n")+`,"replayed":true}`+"\n", string(again.body))
		for _, h := range []http.Header{first.header, again.header} {
			for _, own := range []string{"Date", "X-Request-Id", "Content-Length"} {
				h.Del(own)
			}
		}
		require.Equal(t, first.header, again.header)
		require.True(t, again.decision(first.status).Replayed)
		require.False(t, first.decision(first.status).Replayed)
	}
	require.EqualValues(t, perSubject-1, s.remaining("a", "default"))
	s.check(`{"subject":"a"}`).decision(200)
	require.EqualValues(t, perSubject-2, s.remaining("a", "default"), "a check without a key counts")

	// The same check in another notation is the same request. The status of a denial is chosen by
	// the repeat.
	s.check(`{"attributes":{"a":"2","x":"1"},"explain":true,"cost":1,"subject":"e"}`, keyOf(`{"subject":"e","explain":true,"attributes":{"x":"1","a":"2"}}`)).decision(200)
	s.check(`{"subject":"blocked"}`, keyOf(`{"subject":"blocked"}`), header{"Weir-Denied-Status", "200"}).decision(200)

	// The lane answers repeats in the same way.
	before := s.ordinary.Load()
	c := s.dial()
	for i := range 3 {
		c.send(s.laneRequest(`{"subject":"lane"}`, "Idempotency-Key: !~"))
		a := c.receive()
		a.checkDecisionHeader()
		require.Equal(t, i > 0, a.decision(200).Replayed)
	}
	require.Equal(t, before, s.ordinary.Load(), "the lane answered")
	require.True(t, s.check(`{"subject":"lane"}`, withKey("!~"), header{"X-Unknown", "net/http"}).decision(200).Replayed)
	require.EqualValues(t, perSubject-1, s.remaining("lane", "default"))

	// A batch is one request.
	batch := entries(100, `{"subject":"f","resource":"bulk"}`)
	first, again := s.post("/v1/check/batch", batch, withKey("batch")).ok(200), s.post("/v1/check/batch", batch, withKey("batch")).ok(200)
	require.Equal(t, strings.TrimSuffix(string(first.body), "}\n")+`,"replayed":true}`+"\n", string(again.body))
	require.EqualValues(t, 1_000_000-100, s.remaining("f", "bulk"))
	s.post("/v1/check/batch", entries(99, `{"subject":"f","resource":"bulk"}`), withKey("batch")).problem(422, "IDEMPOTENCY_KEY_REUSED")
}

// A key identifies one request of one tenant.
func TestIdempotencyKeysOfChecks(t *testing.T) {
	s := newCheckStack(t)
	s.check(`{"subject":"a"}`, withKey("k")).decision(200)
	for _, other := range []string{
		`{"subject":"b"}`, `{"subject":"a","cost":2}`, `{"subject":"a","resource":"bulk"}`, `{"subject":"a","plan":"pro"}`,
		`{"subject":"a","dry_run":true}`, `{"subject":"a","explain":true}`, `{"subject":"a","attributes":{"ip":"1"}}`,
	} {
		s.check(other, withKey("k")).problem(422, "IDEMPOTENCY_KEY_REUSED")
	}
	require.EqualValues(t, perSubject-1, s.remaining("a", "default"))
	require.False(t, s.contract.call(s.other, "POST", "/v1/check", `{"subject":"a"}`, withKey("k")).decision(200).Replayed, "another tenant's key")
	for _, bad := range []string{"", " ", "a b", "\u00e9", strings.Repeat("k", 65)} {
		s.check(`{"subject":"a"}`, withKey(bad)).problem(400, "INVALID_HEADER")
	}
	s.check(`{"subject":"a"}`, withKey("a"), withKey("b")).problem(400, "INVALID_HEADER")
	s.check(`{"subject":"long"}`, withKey(strings.Repeat("k", 64))).decision(200)

	// After a refusal, a corrected request may use the same key.
	s.check(`{"subject":"a","cost":-1}`, withKey("c")).problem(422, "INVALID_REQUEST")
	s.check(`{"subject":"a","plan":"gold"}`, withKey("c")).problem(422, "UNKNOWN_PLAN")
	s.check(`{"subject":"a"}`, withKey("c")).decision(200)
	require.EqualValues(t, perSubject-2, s.remaining("a", "default"))
}

// A check and a batch with only this check are different requests. Before, the second one got the
// answer of the first, in a form that its client cannot read.
func TestKeyOfABatchOfOne(t *testing.T) {
	s := newCheckStack(t)
	const one, batch = `{"subject":"a"}`, `{"checks":[{"subject":"a"}]}`
	s.check(one, withKey("check")).decision(200)
	s.post("/v1/check/batch", batch, withKey("check")).problem(422, "IDEMPOTENCY_KEY_REUSED")
	s.post("/v1/check/batch", batch, withKey("batch")).ok(200)
	s.check(one, withKey("batch")).problem(422, "IDEMPOTENCY_KEY_REUSED")
	c := s.dial()
	c.send(s.laneRequest(one, "Idempotency-Key: batch"))
	c.receive().problem(422, "IDEMPOTENCY_KEY_REUSED")
	require.EqualValues(t, perSubject-2, s.remaining("a", "default"))

	// The path of a check does not matter, nor who answers it.
	require.True(t, s.post("/check", one, withKey("check")).decision(200).Replayed)
	c.send(s.laneRequest(one, "Idempotency-Key: check"))
	require.True(t, c.receive().decision(200).Replayed)
	require.Contains(t, string(s.post("/v1/check/batch", batch, withKey("batch")).ok(200).body), `"replayed":true`)
}

// 32 concurrent repeats on three instances count once.
func TestConcurrentRepeats(t *testing.T) {
	s := newCheckStack(t)
	urls := []string{s.server.URL}
	for range 2 {
		s.registry = prometheus.NewRegistry()
		server := httptest.NewServer(New(Config{Headers: bothStyles}, s.redisDeps(t, 20*time.Second)))
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	for _, c := range []struct{ path, body, subject string }{
		{"/v1/check", `{"subject":"one","resource":"bulk"}`, "one"},
		{"/v1/check/batch", `{"checks":[{"subject":"many","resource":"bulk"}]}`, "many"},
	} {
		var mu sync.Mutex
		var firsts int
		var wg sync.WaitGroup
		for i := range 32 {
			wg.Go(func() {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, urls[i%len(urls)]+c.path, strings.NewReader(c.body))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", "Bearer "+s.key)
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Idempotency-Key", c.subject)
				response, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				defer response.Body.Close()
				body, _ := io.ReadAll(response.Body)
				var d struct{ Replayed bool }
				if err := json.Unmarshal(body, &d); err != nil || response.StatusCode != http.StatusOK {
					t.Errorf("%d %s", response.StatusCode, body)
				}
				mu.Lock()
				defer mu.Unlock()
				if !d.Replayed {
					firsts++
				}
			})
		}
		wg.Wait()
		require.Equal(t, 1, firsts)
		require.EqualValues(t, 1_000_000-1, s.remaining(c.subject, "bulk"))
	}
}

// An instance that stops between claim and answer may have counted. A repeat must not count again,
// and returns an error.
func TestRepeatAfterACrash(t *testing.T) {
	s := newCheckStack(t)
	s.registry = prometheus.NewRegistry()
	deps := s.redisDeps(t, time.Millisecond)
	checker := deps.Checker
	deps.Checker = nil // it panics after the claim
	s.serve(Config{}, deps)
	s.check(`{"subject":"a"}`, withKey("k"), header{"X-Unknown", "net/http"}).problem(500, "INTERNAL")
	deps.Checker = checker
	s.serve(Config{}, deps)
	a := s.check(`{"subject":"a"}`, withKey("k"))
	a.problem(409, "IDEMPOTENCY_KEY_IN_USE")
	require.NotEmpty(t, a.header.Get("Retry-After"))
	s.untouched("a")
}

// meteredUnits is a sink of metered usage that sums the units of everybody.
type meteredUnits struct{ units, checks atomic.Int64 }

func (m *meteredUnits) WriteMetered(_ context.Context, b *usage.MeterBatch) error {
	for _, row := range b.Rows {
		m.units.Add(row.Units)
		m.checks.Add(row.Checks)
	}
	return nil
}

// A repeated check is invoiced once: the units of the first decision are metered, and no repeat
// adds any, whether the lane or another instance answers it, alone or in a batch.
func TestRepeatsAreMeteredOnce(t *testing.T) {
	t.Parallel()
	s := &checkStack{t: t, db: tenantstest.New(t), registry: prometheus.NewRegistry()}
	s.ready.Store(&Readiness{})
	s.prepare(t)
	rule := hourly("invoiced", "invoiced", 1_000_000, "subject")
	rule.Metering = limit.MeterUnits
	_, err := s.db.Store.CreateRule(t.Context(), s.actor, rule)
	require.NoError(t, err)
	sum := &meteredUnits{}
	meter := usage.NewMeter(usage.MeterOptions{Sink: sum, Registerer: s.registry, Logger: slog.New(slog.DiscardHandler)})
	s.observers = []check.Observer{meter}
	s.deps = s.redisDeps(t, 20*time.Second)
	s.serve(Config{Headers: bothStyles}, s.deps)

	const body = `{"subject":"a","resource":"invoiced","cost":7}`
	for i := range 3 {
		require.Equal(t, i > 0, s.check(body, withKey("k")).decision(200).Replayed)
	}
	c := s.dial()
	for i := range 3 {
		c.send(s.laneRequest(`{"subject":"b","resource":"invoiced","cost":11}`, "Idempotency-Key: l"))
		require.Equal(t, i > 0, c.receive().decision(200).Replayed)
	}
	batch := entries(5, `{"subject":"c","resource":"invoiced","cost":2}`)
	for range 3 {
		s.post("/v1/check/batch", batch, withKey("batch")).ok(200)
	}
	s.check(`{"subject":"a","resource":"invoiced","cost":100}`).decision(200) // without a key

	ended, end := context.WithCancel(t.Context())
	end()
	meter.Run(ended) // writes what it has
	require.EqualValues(t, 7+11+5*2+100, sum.units.Load())
	require.EqualValues(t, 1+1+5+1, sum.checks.Load())
}

// Requests that use records have places by tenant and take turns at Redis by tenant. Beyond both,
// they are refused, nothing is counted, and neither checks without a key nor other tenants notice.
func TestPlacesOfRecords(t *testing.T) {
	s := newCheckStack(t)
	turns := records.NewTurns()
	s.registry = prometheus.NewRegistry()
	deps := s.redisDeps(t, time.Minute)
	client := testenv.RedisClient(t)
	deps.Once = once.New(once.Options{Client: client, Timeout: time.Second, Turns: turns})
	deps.Leases = leases.New(leases.Options{Client: client, Timeout: time.Second, Turns: turns})
	_, err := s.db.Store.CreateRule(t.Context(), s.actor, leasedRule("leased", 1000))
	require.NoError(t, err)
	s.serve(Config{Headers: bothStyles}, deps)
	id := s.post(leasesPath, `{"subject":"l","resource":"leased","units":10}`).lease().Lease
	refused := func() {
		t.Helper()
		for _, a := range []answer{
			s.check(`{"subject":"a"}`, withKey("k")),
			s.post("/v1/check/batch", entries(2, `{"subject":"a"}`), withKey("b")),
			s.post(leasesPath, `{"subject":"l","resource":"leased","units":10}`),
			s.giveBack(id, `{"units":10}`),
		} {
			a.problem(http.StatusServiceUnavailable, codeOverloaded)
			require.Equal(t, "1", a.header.Get("Retry-After"))
		}
		c := s.dial()
		c.send(s.laneRequest(`{"subject":"a"}`, "Idempotency-Key: k"))
		c.receive().problem(http.StatusServiceUnavailable, codeOverloaded)
		s.check(`{"subject":"plain"}`, header{"Weir-Denied-Status", "200"}).decision(200)
		require.Equal(t, 200, s.contract.call(s.other, http.MethodPost, "/v1/check", `{"subject":"a"}`, withKey("k")).status)
	}

	places := s.lane.server.Load().capacity.records
	leave := takeAll(places, s.actor.TenantID(), maxRecordRequests)
	require.Greater(t, len(leave), maxRecordRequests/6)
	require.Less(t, len(leave), maxRecordRequests/4)
	refused()
	for _, l := range leave {
		l()
	}

	let := s.holdTurns(turns)
	refused()
	let()

	s.untouched("a")
	require.Equal(t, http.StatusNoContent, s.giveBack(id, `{"units":10}`).status)
	require.EqualValues(t, 1000, s.remaining("l", "leased"), "a lease without a record was returned")
	require.False(t, s.check(`{"subject":"a"}`, withKey("k")).decision(200).Replayed, "nothing was claimed")
	require.Eventually(t, func() bool { return places.Held(s.actor.TenantID()) == 0 }, time.Minute, time.Millisecond)
}

// holdTurns takes all turns of the tenant, until let is called.
func (s *checkStack) holdTurns(turns *records.Turns) (let func()) {
	open := make(chan struct{})
	var held sync.WaitGroup
	for turns.Do(s.t.Context(), s.actor.TenantID(), 0, func() {}) == nil {
		has := make(chan struct{})
		held.Go(func() {
			_ = turns.Do(s.t.Context(), s.actor.TenantID(), time.Minute, func() { close(has); <-open })
		})
		<-has
	}
	return func() { close(open); held.Wait() }
}

// A lease that gets no turn in time does not count in the tenant's own quota.
func TestLeaseWithoutATurnTakesNoQuota(t *testing.T) {
	s := newCheckStack(t)
	platform, err := s.db.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	_, err = s.db.Store.CreateRule(t.Context(), tenants.AsSystem(platform.ID, "test"), hourly("checks-an-hour", check.QuotaResource, 1, "subject"))
	require.NoError(t, err)
	_, err = s.db.Store.CreateRule(t.Context(), s.actor, leasedRule("leased", 1000))
	require.NoError(t, err)
	turns := records.NewTurns()
	s.registry = prometheus.NewRegistry()
	deps := s.redisDeps(t, time.Minute)
	deps.Leases = leases.New(leases.Options{Client: testenv.RedisClient(t), Timeout: time.Second, Turns: turns})
	deps.Quota = check.NewQuota(deps.Checker, deps.Policies, platform.ID)
	s.serve(Config{}, deps)

	let := s.holdTurns(turns)
	const body = `{"subject":"l","resource":"leased","units":10}`
	s.post(leasesPath, body).problem(http.StatusServiceUnavailable, codeOverloaded)
	let()
	s.post(leasesPath, body).lease()
	s.post(leasesPath, body).problem(http.StatusTooManyRequests, codeTenantQuotaExceeded)
}

// callsOf counts the commands of a client of Redis.
type callsOf struct{ n atomic.Int64 }

func (*callsOf) DialHook(next redis.DialHook) redis.DialHook { return next }
func (c *callsOf) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.n.Add(1)
		return next(ctx, cmd)
	}
}
func (*callsOf) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// A repeat counts nothing, and gets its answer also when the tenant's own quota is used up. A new
// key is then refused and leaves no record. Leases are refused without a call for records.
func TestRepeatsBeyondTheQuota(t *testing.T) {
	s := newCheckStack(t)
	platform, err := s.db.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	operator := tenants.AsSystem(platform.ID, "test")
	_, err = s.db.Store.CreateRule(t.Context(), operator, hourly("checks-an-hour", check.QuotaResource, 110, "subject"))
	require.NoError(t, err)
	client, calls := testenv.RedisClient(t), &callsOf{}
	client.AddHook(calls)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	deps.Once = once.New(once.Options{Client: client, Timeout: testenv.RedisTimeout, Wait: 20 * time.Second})
	deps.Leases = leases.New(leases.Options{Client: client, Timeout: testenv.RedisTimeout})
	deps.Quota = check.NewQuota(deps.Checker, deps.Policies, platform.ID)
	s.serve(Config{}, deps)

	first := s.check(`{"subject":"a"}`, withKey("k"))
	again := s.check(`{"subject":"a"}`, withKey("k"))
	require.Equal(t, strings.TrimSuffix(string(first.body), "}\n")+`,"replayed":true}`+"\n", string(again.body))
	require.EqualValues(t, perSubject-1, s.remaining("a", "default"))
	s.check(`{"subject":"b"}`, withKey("k")).problem(422, "IDEMPOTENCY_KEY_REUSED")
	batch := entries(100, `{"subject":"c","resource":"bulk"}`)
	s.post("/v1/check/batch", batch, withKey("batch")).ok(200)
	for n := 0; s.check(`{"subject":"d","resource":"bulk"}`).status != 429; n++ {
		require.Less(t, n, 110-101, "a check and the batch were counted before, and no repeat")
	}
	s.check(`{"subject":"d","resource":"bulk"}`).problem(429, "TENANT_QUOTA_EXCEEDED")

	require.True(t, s.check(`{"subject":"a"}`, withKey("k")).decision(200).Replayed)
	require.Contains(t, string(s.post("/v1/check/batch", batch, withKey("batch")).ok(200).body), `"replayed":true`)
	s.check(`{"subject":"a"}`, withKey("new")).problem(429, "TENANT_QUOTA_EXCEEDED")
	before := calls.n.Load()
	require.NotZero(t, before)
	s.post(leasesPath, `{"subject":"a","resource":"bulk","units":10}`).problem(429, "TENANT_QUOTA_EXCEEDED")
	require.Equal(t, before, calls.n.Load())
	deps.Quota = nil
	deps.Metrics = NewMetrics(prometheusRegistry())
	s.serve(Config{}, deps)
	require.False(t, s.check(`{"subject":"a"}`, withKey("new")).decision(200).Replayed, "nothing remained of it")
}
