package tests

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// readiness returns the response of /readyz.
func readiness(t *testing.T, i *instance) string {
	t.Helper()
	response, err := http.Get(i.URL() + "/readyz")
	require.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode, "%s", body)
	return string(body)
}

func redisAdmin(t *testing.T, r *testenv.Redis) *redis.Client {
	t.Helper()
	options, err := redis.ParseURL(r.URL)
	require.NoError(t, err)
	options.MaxRetries = -1
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// A Redis that answers but cannot count is found before the first check. Otherwise an operator who
// mistyped a password would learn of it from the first customers whose limits are not shared.
func TestRedisThatCannotCountIsReported(t *testing.T) {
	for name, c := range map[string]struct {
		settings []string
		prepare  func(t *testing.T, r *testenv.Redis, u *url.URL)
		failure  string
	}{
		"wrong password": {
			prepare: func(t *testing.T, r *testenv.Redis, u *url.URL) {
				require.NoError(t, redisAdmin(t, r).ConfigSet(t.Context(), "requirepass", "right").Err())
				u.User = url.UserPassword("", "wrong")
			},
			failure: "wrong_credentials",
		},
		"no scripting": {
			prepare: func(t *testing.T, r *testenv.Redis, u *url.URL) {
				require.NoError(t, redisAdmin(t, r).Do(t.Context(), "acl", "setuser", "weir", "on", ">pass", "~*", "&*", "+@all", "-@scripting").Err())
				u.User = url.UserPassword("weir", "pass")
			},
			failure: "no_permission",
		},
		"replica": {settings: []string{"replicaof 127.0.0.1 1"}, failure: "read_only"},
		"full": {
			prepare: func(t *testing.T, r *testenv.Redis, _ *url.URL) {
				require.NoError(t, redisAdmin(t, r).ConfigSet(t.Context(), "maxmemory", "1").Err())
			},
			failure: "out_of_memory",
		},
		"no free clients": {
			settings: []string{"maxclients 1"},
			prepare: func(t *testing.T, r *testenv.Redis, _ *url.URL) {
				conn := redisAdmin(t, r).Conn()
				t.Cleanup(func() { _ = conn.Close() })
				require.NoError(t, conn.Ping(t.Context()).Err()) // uses the only connection
			},
			failure: "too_many_clients",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testenv.StartRedis(t, c.settings...)
			u, err := url.Parse(r.URL)
			require.NoError(t, err)
			if c.prepare != nil {
				c.prepare(t, r, u)
			}
			i := start(t, newSettings(t).With(settings{"WEIR_REDIS_URL": u.String()})).AwaitReady()
			i.AwaitLog(`"failure":"` + c.failure + `"`)
			said := readiness(t, i)
			if name == "full" { // if the reading of its memory has ended before
				said = strings.Replace(said, `,"warnings":["redis_nearly_full"]`, "", 1)
			}
			require.JSONEq(t, `{"status":"ready","degraded":["redis"],"causes":{"redis":"`+c.failure+`"}}`, said)
			metrics := i.Metrics()
			require.Contains(t, metrics, "weir_degraded 1")
			require.Regexp(t, `weir_redis_failures_total\{class="`+c.failure+`"\} [1-9]`, metrics)
			require.NotContains(t, i.Log(), "right")
		})
	}
}

// A Redis that evicts counts until its memory is full, and loses limits after that.
func TestEvictingRedisIsReported(t *testing.T) {
	r := testenv.StartRedis(t, "maxmemory-policy allkeys-lru")
	i := start(t, newSettings(t).With(settings{"WEIR_REDIS_URL": r.URL})).AwaitReady()
	i.AwaitLog(`"maxmemory_policy":"allkeys-lru"`)
	require.JSONEq(t, `{"status":"ready","degraded":[],"warnings":["redis_eviction"]}`, readiness(t, i))
	require.Contains(t, i.Metrics(), "weir_redis_servers_evicting 1")
}

// A Redis that is nearly full is reported when this begins and when it ends.
func TestNearlyFullRedisIsReported(t *testing.T) {
	r := testenv.StartRedis(t)
	require.NoError(t, redisAdmin(t, r).Set(t.Context(), "other", strings.Repeat("x", 32<<20), 0).Err())
	require.NoError(t, redisAdmin(t, r).ConfigSet(t.Context(), "maxmemory", "45mb").Err())
	i := start(t, newSettings(t).With(settings{"WEIR_REDIS_URL": r.URL})).AwaitReady()
	i.AwaitLog(`"msg":"redis is nearly full`)
	require.JSONEq(t, `{"status":"ready","degraded":[],"warnings":["redis_nearly_full"]}`, readiness(t, i))
	require.Regexp(t, `weir_redis_memory_ratio 0\.[89]`, i.Metrics())
	require.Contains(t, i.Metrics(), "weir_tenants_memory_full 0")
	require.NoError(t, redisAdmin(t, r).ConfigSet(t.Context(), "maxmemory", "0").Err())
	i.AwaitLog(`"msg":"redis is no longer nearly full"`)
	require.NotContains(t, readiness(t, i), "warnings")
}

// A Redis that is nearly full gets no further records, and repeats of earlier checks are answered.
func TestNearlyFullRedisTakesNoRecords(t *testing.T) {
	r := testenv.StartRedis(t, "enable-debug-command yes")
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": r.URL})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	keyed := func(key string) answer {
		got, err := tenant.tryWith(http.MethodPost, i.URL()+"/v1/check", `{"subject":"s","resource":"none"}`, http.Header{"Idempotency-Key": {key}})
		require.NoError(t, err)
		return got
	}
	require.Equal(t, http.StatusOK, keyed("before").status)
	admin := redisAdmin(t, r)
	require.NoError(t, admin.Do(t.Context(), "DEBUG", "POPULATE", 4000, "other", 16<<10).Err())
	used := admin.InfoMap(t.Context(), "memory").Item("Memory", "used_memory")
	bytes, err := strconv.Atoi(used)
	require.NoError(t, err)
	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(bytes*1000/985)).Err())
	i.AwaitLog(`"msg":"redis is nearly full`)
	refused := keyed("new")
	require.Equal(t, http.StatusTooManyRequests, refused.status)
	require.Contains(t, string(refused.body), "TENANT_RECORDS_EXCEEDED")
	require.Equal(t, http.StatusOK, keyed("before").status)

	require.NoError(t, admin.ConfigSet(t.Context(), "maxmemory", "0").Err())
	i.AwaitLog(`"msg":"redis is no longer nearly full"`)
	require.Eventually(t, func() bool { return keyed("new").status == http.StatusOK }, patience, tick)
}

// Lost counters are lost limits, so the operator must be notified.
func TestLostCountersAreReported(t *testing.T) {
	r := testenv.StartRedis(t)
	i := start(t, newSettings(t).With(settings{"WEIR_REDIS_URL": r.URL})).AwaitReady()
	admin := redisAdmin(t, r)
	require.Eventually(t, func() bool { return admin.Exists(t.Context(), "w{canary0}").Val() == 1 }, patience, tick)
	require.Contains(t, i.Metrics(), "weir_redis_losses_total 0")
	backup := admin.Dump(t.Context(), "w{canary0}").Val()
	require.NoError(t, admin.FlushAll(t.Context()).Err())
	i.AwaitLog(`"losses":1`)
	require.Contains(t, i.Metrics(), "weir_redis_losses_total 1")

	require.NoError(t, admin.RestoreReplace(t.Context(), "w{canary0}", 0, backup).Err())
	i.AwaitLog(`"losses":2`)
	require.Equal(t, 2, strings.Count(i.Log(), "redis lost counters"))
}

// A customer spends credits. Redis is killed and returns with a dump of before, as after a restore:
// the credits that were spent are not there again.
func TestSpentCreditsDoNotComeBackWithAnOlderDump(t *testing.T) {
	r := testenv.StartRedis(t, "enable-debug-command yes")
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": r.URL})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	tenant.putRule("calls", `{"resource":"calls","algorithm":"fixed_window","limit":1,"window":"365d"}`, i)
	tenant.do(http.MethodPut, i.URL()+"/v1/subjects/ada", `{}`, http.StatusCreated)
	const path = "/v1/subjects/ada/credits"
	tenant.do(http.MethodPost, i.URL()+path, `{"rule":"calls","units":100}`, http.StatusCreated)
	check := func(cost int) (allowed bool, left int64) {
		var d struct {
			Allowed  bool
			Degraded bool
			Rules    []struct {
				Left *int64 `json:"credits_remaining"`
			}
		}
		got, err := tenant.try(http.MethodPost, i.URL()+"/v1/check", fmt.Sprintf(`{"subject":"ada","resource":"calls","cost":%d}`, cost))
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(got.body, &d), "%s", got.body)
		if d.Degraded || len(d.Rules) == 0 || d.Rules[0].Left == nil {
			return false, -1
		}
		return d.Allowed, *d.Rules[0].Left
	}
	stored := func(spent string) {
		t.Helper()
		require.Eventually(t, func() bool {
			return strings.Contains(string(tenant.do(http.MethodGet, i.URL()+path, "", http.StatusOK).body), spent)
		}, patience, tick)
	}
	spend := func(cost int, want int64) {
		t.Helper()
		require.Eventually(t, func() bool {
			allowed, left := check(cost)
			return allowed && left == want
		}, patience, tick)
	}
	spend(11, 90)
	stored(`"spent":10,`)
	admin := redisAdmin(t, r)
	require.NoError(t, admin.Save(t.Context()).Err())
	spend(60, 30)
	stored(`"spent":70,`)
	probed := admin.Get(t.Context(), "w{canary0}").Val()
	require.Eventually(t, func() bool { return admin.Get(t.Context(), "w{canary0}").Val() != probed }, patience, tick)

	r.Kill()
	r.Start() // with the dump
	i.AwaitLog(`"losses":1`)
	spend(1, 29)
	allowed, left := check(30)
	require.False(t, allowed)
	require.EqualValues(t, 29, left)
}
