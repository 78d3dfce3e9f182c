package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/api"
	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

var newTenants = flag.Int64("new-tenants", 400, "how many tenants TestWritesOfNewTenantsAreInForce creates")

// A new customer's first key works, and each of their writes is in force for the next check at the
// same instance, while other tenants sign up, are loaded and are evicted. The test has a thousand
// tenants: with the races that it is about, one in thirty found an old policy.
func TestWritesOfNewTenantsAreInForce(t *testing.T) {
	t.Run("preloaded", func(t *testing.T) { testNewTenants(t, *newTenants/2, 0) })
	t.Run("evicted", func(t *testing.T) { testNewTenants(t, *newTenants/2, 150_000) }) // a few dozen of them
}

func testNewTenants(t *testing.T, count int64, policyMemory int64) {
	i := newSmallInstance(t, policyMemory)
	const atOnce = 4
	var next atomic.Int64
	var customers, others sync.WaitGroup
	for range atOnce {
		customers.Go(func() {
			for n := next.Add(1); n <= count; n = next.Add(1) {
				i.newTenant(fmt.Sprintf("new-%d", n), n%2 == 0)
			}
		})
	}
	ended := make(chan struct{})
	others.Go(func() { // checks of earlier tenants, which are loaded again if necessary
		for n := 0; ; n++ {
			select {
			case <-ended:
				return
			default:
			}
			if key := i.known(n); key != "" {
				i.call(key, http.MethodPost, "/v1/check", `{"subject":"ada","cost":0}`)
			}
		}
	})
	customers.Wait()
	close(ended)
	others.Wait()
	i.mu.Lock()
	defer i.mu.Unlock()
	require.Empty(t, i.wrong, "of %d tenants; log:\n%s", count, &i.log)
	if policyMemory > 0 {
		evictions, err := testutil.GatherAndCount(i.registry, "weir_policy_evictions_total")
		require.NoError(t, err)
		require.Equal(t, 1, evictions)
		require.False(t, i.policies.HalfFree())
	}
}

// smallInstance has the parts that serve assembles for the admin API and checks, with counters in
// memory.
type smallInstance struct {
	url, operator string
	policies      *check.Policies
	registry      *prometheus.Registry

	mu    sync.Mutex
	keys  []string       // of the tenants that have completed all steps
	wrong map[string]int // failures by kind
	log   bytes.Buffer
}

func (i *smallInstance) Write(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.log.Write(b)
}

func newSmallInstance(t *testing.T, policyMemory int64) *smallInstance {
	i := &smallInstance{registry: prometheus.NewRegistry(), wrong: map[string]int{}}
	log := slog.New(slog.NewTextHandler(i, &slog.HandlerOptions{Level: slog.LevelWarn}))
	d := tenantstest.NewWith(t, tenants.Config{Logger: log, MaxConns: 8})
	platform, err := d.Store.EnsurePlatform(t.Context())
	require.NoError(t, err)
	_, operator, err := d.Store.CreateOperatorKey(t.Context(), "test")
	require.NoError(t, err)
	i.operator = operator.Secret()

	keys := check.NewKeys([16]byte{1})
	parts := checktest.New(t, checktest.Options{Keys: keys, Registry: i.registry})
	i.policies = check.NewPolicies(d.Store, keys, log, parts.Metrics)
	if policyMemory > 0 {
		i.policies.Limit(policyMemory)
	}
	authenticator := tenants.NewAuthenticator(d.Store)
	following := newFollower(d.Store, authenticator, i.policies, platform.ID, log)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- following.run(ctx) }()
	<-following.ready

	lane := api.NewLane()
	handler := api.New(api.Config{Lane: lane}, api.Deps{
		Store: d.Store, Authenticator: authenticator, Policies: i.policies, Checker: parts.Checker, Instances: parts.Peers.Count,
		Quota:  check.NewQuota(parts.Checker, i.policies, platform.ID),
		Logger: log, Metrics: api.NewMetrics(i.registry), Readiness: func() api.Readiness { return api.Readiness{} },
		Follow: following.now, CursorKey: make([]byte, 32),
	})
	server := api.NewServer(handler, log)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	i.url = "http://" + listener.Addr().String()
	served := make(chan error, 1)
	go func() { served <- server.Serve(lane.Listen(listener)) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.ErrorIs(t, <-served, http.ErrServerClosed)
		stop()
		require.NoError(t, <-ended)
		i.policies.Close()
	})
	return i
}

// call sends a request and returns the body of the answer. It records a failure by its step. If
// Postgres has no time for a request on a busy machine, the request changed nothing and is sent
// again.
func (i *smallInstance) call(key, method, path, body string) (answer []byte, ok bool) {
	const tries = 10
	for range tries {
		var status int
		if answer, status, ok = i.send(key, method, path, body); status != http.StatusServiceUnavailable {
			return answer, ok
		}
	}
	i.fail(fmt.Sprintf("%s %s: unavailable %d times", method, path, tries))
	return nil, false
}

func (i *smallInstance) send(key, method, path, body string) (answer []byte, status int, ok bool) {
	request, err := http.NewRequest(method, i.url+path, strings.NewReader(body))
	if err != nil {
		i.fail(err.Error())
		return nil, 0, false
	}
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		i.fail(err.Error())
		return nil, 0, false
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	if err == nil && response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "" {
		return nil, response.StatusCode, false
	}
	if err != nil || response.StatusCode >= 300 {
		i.fail(fmt.Sprintf("%s %s: %d", method, path, response.StatusCode))
		return nil, response.StatusCode, false
	}
	return answer, response.StatusCode, true
}

func (i *smallInstance) fail(what string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.wrong[what]++
}

// known returns the key of a tenant that has completed all steps, or "" if there is none.
func (i *smallInstance) known(n int) string {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.keys) == 0 {
		return ""
	}
	return i.keys[n%len(i.keys)]
}

// newTenant creates a tenant and a rule, and changes the rule. A check follows each write. The
// check after the first write, which loads the policy, is made only with checkFirst.
func (i *smallInstance) newTenant(slug string, checkFirst bool) {
	answer, ok := i.call(i.operator, http.MethodPost, "/v1/tenants", fmt.Sprintf(`{"slug":%q}`, slug))
	var created struct {
		Key struct{ Secret string } `json:"key"`
	}
	if !ok || json.Unmarshal(answer, &created) != nil {
		return
	}
	key := created.Key.Secret
	// finds runs a check, which must find this limit. 0 means no rule.
	finds := func(limit int64, after string) {
		answer, ok := i.call(key, http.MethodPost, "/v1/check", `{"subject":"ada","cost":0}`)
		var d struct{ Limit int64 }
		if !ok {
			i.fail("no decision after " + after)
		} else if err := json.Unmarshal(answer, &d); err != nil || d.Limit != limit {
			i.fail("an old policy after " + after)
		}
	}
	if checkFirst {
		finds(0, "the tenant was created")
	}
	if _, ok := i.call(key, http.MethodPut, "/v1/rules/r", `{"algorithm":"fixed_window_first_hit","limit":2,"window":"1h"}`); ok {
		finds(2, "the first rule")
	}
	if _, ok := i.call(key, http.MethodPatch, "/v1/rules/r", `{"limit":3}`); ok {
		finds(3, "a changed limit")
	}
	if _, ok := i.call(key, http.MethodDelete, "/v1/rules/r", ""); ok {
		finds(0, "the rule was deleted")
	}
	i.mu.Lock()
	i.keys = append(i.keys, key)
	i.mu.Unlock()
}
