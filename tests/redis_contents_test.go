package tests

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// redisContents returns every key, field and value in Redis, one in a line.
func redisContents(t testing.TB, client *redis.Client) string {
	t.Helper()
	ctx := context.Background()
	var out strings.Builder
	add := func(values []string, err error) {
		require.NoError(t, err)
		for _, v := range values {
			out.WriteString(v + "\n")
		}
	}
	keys := client.Scan(ctx, 0, "*", 1000).Iterator()
	for keys.Next(ctx) {
		key := keys.Val()
		kind, err := client.Type(ctx, key).Result()
		add([]string{key}, err)
		switch kind {
		case "none": // it has expired
		case "string":
			value, err := client.Get(ctx, key).Result()
			if err == redis.Nil {
				err = nil
			}
			add([]string{value}, err)
		case "hash":
			fields, err := client.HGetAll(ctx, key).Result()
			require.NoError(t, err)
			for name, value := range fields {
				add([]string{name, value}, nil)
			}
		case "zset":
			add(client.ZRange(ctx, key, 0, -1).Result())
		case "set":
			add(client.SMembers(ctx, key).Result())
		case "list":
			add(client.LRange(ctx, key, 0, -1).Result())
		default:
			require.Fail(t, "search this type, too", "%s is a %s", key, kind)
		}
	}
	require.NoError(t, keys.Err())
	return out.String()
}

// published records what is published on all channels of Redis.
type published struct {
	mu   sync.Mutex
	text strings.Builder
}

func recordPublished(t testing.TB, client *redis.Client) *published {
	t.Helper()
	sub := client.PSubscribe(context.Background(), "*")
	_, err := sub.Receive(context.Background())
	require.NoError(t, err)
	p := &published{}
	var running sync.WaitGroup
	running.Go(func() {
		for m := range sub.Channel() {
			p.mu.Lock()
			p.text.WriteString(m.Channel + "\n" + m.Payload + "\n")
			p.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		_ = sub.Close()
		running.Wait()
	})
	return p
}

func (p *published) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// A person who reads Redis, or a backup of it, learns neither subjects nor resources, attributes,
// keys, addresses, nor what was decided.
func TestRedisHasNoAnswers(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	admin := redisAdmin(t, r)
	heard := recordPublished(t, admin)
	s := newSettings(t).With(settings{"WEIR_REDIS_URL": r.URL})
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	for slug, fields := range map[string]string{
		"rulecanary":    `"limit":3,"window":"1h","algorithm":"sliding_window_log","by":["subject","attributes.attrcanary"]`,
		"penaltycanary": `"limit":2,"window":"1h","algorithm":"fixed_window","penalty":"1h"`,
		"leasedcanary":  `"limit":1000,"window":"1h","algorithm":"sliding_window_counter","consistency":"leased"`,
		"bucketcanary":  `"limit":5,"window":"1m","algorithm":"token_bucket"`,
		"creditcanary":  `"limit":5,"window":"1h","algorithm":"fixed_window"`,
	} {
		tenant.putRule(slug, fmt.Sprintf(`{"resource":%q,%s}`, slug, fields), i)
		body := fmt.Sprintf(`{"subject":"subjectcanary","resource":%q,"attributes":{"attrcanary":"valuecanary"}`, slug)
		for n := range 5 {
			key := http.Header{"Idempotency-Key": {fmt.Sprintf("keycanary-%s-%d", slug, n)}}
			for range 2 {
				got, err := tenant.tryWith(http.MethodPost, i.URL()+"/v1/check", body+`,"explain":true}`, key)
				require.NoError(t, err)
				require.Contains(t, string(got.body), "subjectcanary", "%d", got.status)
			}
		}
		batch := `{"checks":[` + strings.Repeat(body+"},", 40) + body + "}]}"
		_, err := tenant.tryWith(http.MethodPost, i.URL()+"/v1/check/batch", batch, http.Header{"Idempotency-Key": {"keycanary-batch-" + slug}})
		require.NoError(t, err)
	}
	tenant.do(http.MethodPut, i.URL()+"/v1/subjects/subjectcanary", `{}`, http.StatusCreated)
	tenant.do(http.MethodPost, i.URL()+"/v1/subjects/subjectcanary/credits", `{"rule":"creditcanary","units":5}`, http.StatusCreated)
	got := tenant.do(http.MethodPost, i.URL()+"/v1/leases", `{"subject":"subjectcanary","resource":"leasedcanary","units":10}`, http.StatusOK)
	var lease struct{ Lease string }
	require.NoError(t, json.Unmarshal(got.body, &lease))
	tenant.do(http.MethodPost, i.URL()+"/v1/leases", `{"subject":"subjectcanary","resource":"leasedcanary","units":10}`, http.StatusOK)
	tenant.do(http.MethodPost, i.URL()+"/v1/leases/"+lease.Lease+"/return", `{"units":10}`, http.StatusNoContent)
	_, err := tenant.tryWith(http.MethodGet, i.URL()+"/v1/authorize", "", http.Header{"Weir-Subject": {"subjectcanary"}, "Weir-Resource": {"rulecanary"}})
	require.NoError(t, err)
	response, err := tenant.http.PostForm(i.URL()+"/login", map[string][]string{"email": {"mailcanary@example.com"}, "password": {"passwordcanary"}})
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	tenant.do(http.MethodPost, i.URL()+"/v1/subjects/subjectcanary/reset", `{"reason":"reasoncanary"}`, http.StatusOK)
	stored := redisContents(t, admin)  // before the answers expire
	second := start(t, s).AwaitReady() // the instances exchange messages
	require.Eventually(t, func() bool { return strings.Contains(second.Metrics(), "weir_instances 2") }, patience, tick)
	stored += redisContents(t, admin)
	require.Greater(t, strings.Count(stored, "}once\n"), 20, "the answers are stored")
	require.Contains(t, stored, "}lease\n")
	for _, text := range []string{stored, heard.String()} {
		require.NotContains(t, text, "canary-")
		for _, word := range []string{
			"subjectcanary", "rulecanary", "penaltycanary", "leasedcanary", "bucketcanary", "creditcanary", "attrcanary", "valuecanary", "keycanary",
			"mailcanary", "passwordcanary", tenant.key, lease.Lease, "allowed", "remaining", "X-RateLimit",
		} {
			require.NotContains(t, text, word)
		}
	}
}
