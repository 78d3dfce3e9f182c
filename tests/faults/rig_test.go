package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/tests/harness"
)

const (
	patience = harness.Patience
	tick     = harness.Tick
)

// instances is the number of instances of a rig.
const instances = 3

// A rig is an installation of its own: a database, Redis and instances.
type rig struct {
	t         testing.TB
	direct    harness.Settings // without links
	nodes     []*node
	redis     *testenv.Redis     // if it is one server
	sentinels *testenv.Sentinels // if it has Sentinels
	cluster   *testenv.Cluster   // if it is a Cluster
	operator  *caller
	probe     *caller // the tenant whose decisions are compared with its limits
	settings  harness.Settings
	program   string                       // of its instances and commands
	each      func(n int) harness.Settings // further settings of an instance
}

// A node is an instance with its links.
type node struct {
	*harness.Instance
	settings harness.Settings
	redis    *link // nil for Sentinels and a Cluster, which tell clients their own addresses
	postgres *link
	addr     string // of HTTP, the same after a restart
}

func (n *node) url() string { return "http://" + n.addr }

// option changes a rig before its instances start.
type option func(*rig)

// with adds settings of the instances.
func with(more harness.Settings) option {
	return func(r *rig) { r.settings = r.settings.With(more) }
}

// withSentinels replaces the single Redis by a primary, two replicas and three Sentinels.
func withSentinels(downAfter time.Duration) option {
	return func(r *rig) { r.sentinels = testenv.StartSentinels(r.t, 2, downAfter) }
}

// withCluster replaces the single Redis by a Cluster of three masters with a replica each.
func withCluster(nodeTimeout time.Duration) option {
	return func(r *rig) { r.cluster = testenv.StartCluster(r.t, 3, 1, nodeTimeout) }
}

// withRedis starts the single Redis with lines of configuration.
func withRedis(lines ...string) option {
	return func(r *rig) { r.redis = testenv.StartRedis(r.t, lines...) }
}

// newRig starts an installation with three ready instances, a probe tenant with the rules of
// probeRules, and two tenants of ordinary load.
func newRig(t testing.TB, options ...option) *rig {
	t.Helper()
	r := &rig{t: t, direct: harness.NewSettings(t), settings: harness.Settings{"WEIR_LOG_LEVEL": "info"}, program: harness.Server(t)}
	delete(r.direct, "WEIR_REDIS_TIMEOUT") // the default: the timeout is a part of what is measured
	for _, o := range options {
		o(r)
	}
	if r.redis == nil && r.sentinels == nil && r.cluster == nil {
		r.redis = testenv.StartRedis(t)
	}
	switch {
	case r.sentinels != nil:
		r.direct["WEIR_REDIS_URL"] = r.sentinels.URL
	case r.cluster != nil:
		r.direct["WEIR_REDIS_URL"] = r.cluster.URL
	default:
		r.direct["WEIR_REDIS_URL"] = r.redis.URL
	}
	r.direct = r.direct.With(r.settings)
	for range instances {
		r.nodes = append(r.nodes, r.newNode())
	}
	for _, n := range r.nodes {
		n.AwaitReady()
	}
	r.createTenants()
	r.awaitPeers(instances)
	return r
}

// newNode starts an instance with links of its own, and returns without waiting.
func (r *rig) newNode() *node {
	r.t.Helper()
	return r.newNodeOf(r.program)
}

// newNodeOf is newNode with another program than that of the rig.
func (r *rig) newNodeOf(program string) *node {
	r.t.Helper()
	n := &node{settings: r.direct.With(nil)}
	if r.each != nil {
		n.settings = n.settings.With(r.each(len(r.nodes)))
	}
	n.postgres = r.linkTo(n.settings, "WEIR_DATABASE_URL")
	if r.redis != nil {
		n.redis = r.linkTo(n.settings, "WEIR_REDIS_URL")
	}
	n.Instance = harness.StartProgram(r.t, program, n.settings)
	n.addr = n.Address("WEIR_HTTP_ADDR")
	n.settings["WEIR_HTTP_ADDR"] = n.addr
	n.settings["WEIR_INTERNAL_ADDR"] = n.Address("WEIR_INTERNAL_ADDR")
	return n
}

// restart starts the instance again at its address after it has ended.
func (r *rig) restart(n *node) {
	r.t.Helper()
	<-n.Done()
	n.Instance = harness.StartProgram(r.t, r.program, n.settings)
	n.AwaitReady()
}

// linkTo puts a link in front of the server of a setting.
func (r *rig) linkTo(s harness.Settings, variable string) *link {
	r.t.Helper()
	u, err := url.Parse(s[variable])
	require.NoError(r.t, err)
	l := newLink(r.t, u.Host)
	u.Host = l.addr
	s[variable] = u.String()
	return l
}

// probeLimit is the limit of each rule of the probe tenant within probeWindow.
const (
	probeLimit  = 24
	probeWindow = 2 * time.Second
)

// probeRules are the rules of the probe tenant: for each on_unavailable a resource of the same
// name, and a rule that never denies, whose window does not end during a run.
func probeRules() string {
	var rules []string
	for _, policy := range []string{"local", "deny", "allow"} {
		rules = append(rules, fmt.Sprintf(`{"slug":%q,"resource":%[1]q,"algorithm":"fixed_window","limit":%d,"window":"%dms","on_unavailable":%[1]q}`,
			policy, probeLimit, probeWindow.Milliseconds()))
	}
	rules = append(rules, fmt.Sprintf(`{"slug":"tally","resource":"tally","algorithm":"fixed_window","limit":%d,"window":%q,"on_unavailable":"allow"}`,
		int64(tallyLimit), harness.QuietWindow(time.Now(), 360, 3)))
	return `{"rules":[` + strings.Join(rules, ",") + `]}`
}

const tallyLimit = 1_000_000_000

func (r *rig) createTenants() {
	r.t.Helper()
	var stdout, stderr string
	code := -1
	for tries := 0; code != 0 && tries < 3; tries++ { // other rows keep Postgres busy
		stdout, stderr, code = harness.RunProgram(r.t, r.program, r.direct, "operator-key", "create", "faults")
	}
	require.Zero(r.t, code, stderr)
	r.operator = newCaller(r.t, strings.TrimSpace(stdout))
	r.probe = r.tenant("probe", probeRules())
	for _, resource := range []string{"local", "deny", "allow", "tally"} {
		r.awaitRule(r.probe, resource)
	}
}

// tenant creates a tenant with a configuration, and returns a caller with its key.
func (r *rig) tenant(slug, config string) *caller {
	r.t.Helper()
	var created struct {
		Key struct{ Secret string } `json:"key"`
	}
	status, body := 0, []byte(nil)
	for tries := 0; tries == 0 || status == http.StatusServiceUnavailable && tries < 5; tries++ { // other rows keep Postgres busy
		status, body = r.operator.do(http.MethodPost, r.nodes[0].url()+"/v1/tenants", `{"slug":"`+slug+`"}`)
	}
	require.Equal(r.t, http.StatusCreated, status, "%s", body)
	require.NoError(r.t, json.Unmarshal(body, &created))
	c := newCaller(r.t, created.Key.Secret)
	if config != "" {
		status, body = c.do(http.MethodPut, r.nodes[0].url()+"/v1/config", config)
		require.Equal(r.t, http.StatusOK, status, "%s", body)
	}
	return c
}

// ordinary creates a tenant of ordinary load, with one rule that it does not reach.
func (r *rig) ordinary(slug string) *caller {
	r.t.Helper()
	c := r.tenant(slug, `{"rules":[{"slug":"requests","resource":"requests","limit":100000,"window":"1m"}]}`)
	r.awaitRule(c, "requests")
	return c
}

// awaitRule returns when the rule of a resource is in force at all instances.
func (r *rig) awaitRule(c *caller, resource string) {
	r.t.Helper()
	for _, n := range r.nodes {
		require.Eventually(r.t, func() bool {
			_, body, err := c.try(http.MethodPost, n.url()+"/v1/check", `{"subject":"peek","resource":"`+resource+`","cost":0}`)
			return err == nil && strings.Contains(string(body), `"rule":"`+resource+`"`)
		}, patience, tick, "the rule is not in force")
	}
}

// awaitPeers returns when each instance knows of this many: the shares of a limit depend on it.
func (r *rig) awaitPeers(count float64) {
	r.t.Helper()
	for _, n := range r.nodes {
		r.awaitMetric(n, "weir_instances", func(v float64) bool { return v >= count })
	}
}

func (r *rig) awaitMetric(n *node, name string, holds func(float64) bool) {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return holds(n.metric(name)) }, patience, tick, name)
}

// metric returns the sum of a metric over its labels.
func (n *node) metric(name string) (sum float64) {
	for line := range strings.Lines(n.Metrics()) {
		if !strings.HasPrefix(line, name) {
			continue
		}
		rest := line[len(name):]
		if rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err == nil {
			sum += value
		}
	}
	return sum
}

// total returns the sum of a metric over all instances.
func (r *rig) total(name string) (sum float64) {
	for _, n := range r.nodes {
		sum += n.metric(name)
	}
	return sum
}

// admin returns a client of a Redis server.
func admin(t testing.TB, s *testenv.Redis) *redis.Client {
	t.Helper()
	o, err := redis.ParseURL(s.URL)
	require.NoError(t, err)
	o.MaxRetries = -1
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// keysWithoutExpiry returns how many keys of a Redis server never expire.
func keysWithoutExpiry(t testing.TB, s *testenv.Redis) (keys int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	info, err := admin(t, s).Info(ctx, "keyspace").Result()
	require.NoError(t, err)
	for line := range strings.Lines(info) {
		var n, all, expires int64
		if _, err := fmt.Sscanf(line, "db%d:keys=%d,expires=%d", &n, &all, &expires); err == nil {
			keys += all - expires
		}
	}
	return keys
}

// A caller sends requests with one key and never repeats one.
type caller struct {
	t    testing.TB
	key  string
	http *http.Client
}

func newCaller(t testing.TB, key string) *caller {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	t.Cleanup(transport.CloseIdleConnections)
	return &caller{t: t, key: key, http: &http.Client{Transport: transport, Timeout: patience}}
}

func (c *caller) request(method, url, body string) *http.Request {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	request.GetBody = nil // net/http cannot repeat a request without it
	request.Header.Set("Authorization", "Bearer "+c.key)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	return request
}

func (c *caller) try(method, url, body string) (status int, answer []byte, err error) {
	status, _, answer, err = c.full(method, url, body)
	return status, answer, err
}

// full is try with the header of the answer.
func (c *caller) full(method, url, body string) (status int, header http.Header, answer []byte, err error) {
	response, err := c.http.Do(c.request(method, url, body))
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, response.Header, answer, err
}

func (c *caller) do(method, url, body string) (status int, answer []byte) {
	c.t.Helper()
	status, answer, err := c.try(method, url, body)
	require.NoError(c.t, err)
	return status, answer
}
