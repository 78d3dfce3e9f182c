// Package tests tests the running system from outside: real server processes, real Postgres and
// Redis, HTTP and TLS. The behavior of a single package is tested in that package.
package tests

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// Short names of what all tests use.
const (
	patience = harness.Patience
	tick     = harness.Tick
)

type (
	settings = harness.Settings
	instance = harness.Instance
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

func newSettings(t testing.TB) settings { return harness.NewSettings(t) }

func start(t testing.TB, s settings, args ...string) *instance { return harness.Start(t, s, args...) }

func status(url string) int { return harness.Status(url) }

func help(t testing.TB) string { return harness.Help(t) }

func runServer(t testing.TB, s settings, args ...string) (stdout, stderr string, code int) {
	return harness.Run(t, s, args...)
}

// client is a client of one installation with one key. It never repeats a request.
type client struct {
	t    testing.TB
	key  string
	http *http.Client
}

func newClient(t testing.TB, key string) *client {
	// The transport may dial more connections than it uses, and the server closes one that has sent
	// nothing for 5 s. A POST that is sent at that moment is not repeated.
	transport := &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 2 * time.Second}
	t.Cleanup(transport.CloseIdleConnections)
	return &client{t: t, key: key, http: &http.Client{Transport: transport, Timeout: patience}}
}

type answer struct {
	status int
	header http.Header
	body   []byte
	last   bool // the server asks the client to close the connection
}

// decision has the fields of a check's response that tests use.
type decision struct {
	Allowed      bool   `json:"allowed"`
	Degraded     bool   `json:"degraded"`
	Rule         string `json:"rule"`
	Limit        int64  `json:"limit"`
	Remaining    *int64 `json:"remaining"`
	ResetAfterMS int64  `json:"reset_after_ms"`
	Error        *struct {
		Code string `json:"code"`
	} `json:"error"`
}

// check sends a check. It may be used concurrently.
func (c *client) check(url, body string) (answer, decision, error) {
	var d decision
	got, err := c.try(http.MethodPost, url, body)
	if err == nil {
		err = json.Unmarshal(got.body, &d)
	}
	return got, d, err
}

// try sends one request and returns network errors.
func (c *client) try(method, url, body string) (answer, error) {
	return c.tryWith(method, url, body, nil)
}

// tryWith is try with additional headers.
func (c *client) tryWith(method, url, body string, header http.Header) (answer, error) {
	request, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.GetBody = nil // net/http cannot repeat a request without it
	for name, values := range header {
		request.Header[name] = values
	}
	request.Header.Set("Authorization", "Bearer "+c.key)
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	return answer{status: response.StatusCode, header: response.Header, body: read, last: response.Close}, err
}

// do sends a request, whose response must have this status.
func (c *client) do(method, url, body string, want int) answer {
	c.t.Helper()
	got, err := c.try(method, url, body)
	require.NoError(c.t, err)
	require.Equal(c.t, want, got.status, "%s %s: %s", method, url, got.body)
	return got
}

// newTenant creates a tenant with the operator's API and returns a client with its first key.
func newTenant(t testing.TB, s settings, i *instance) *client {
	t.Helper()
	return newTenantOf(t, s, i, "acme")
}

// newTenantOf is newTenant with another slug.
func newTenantOf(t testing.TB, s settings, i *instance, slug string) *client {
	t.Helper()
	stdout, stderr, code := runServer(t, s, "operator-key", "create", "tests-"+slug)
	require.Zero(t, code, stderr)
	operator := newClient(t, strings.TrimSpace(stdout))
	var made struct {
		Key struct{ Secret string } `json:"key"`
	}
	got := operator.do(http.MethodPost, i.URL()+"/v1/tenants", `{"slug":"`+slug+`","name":"`+slug+`"}`, http.StatusCreated)
	require.NoError(t, json.Unmarshal(got.body, &made))
	require.NotEmpty(t, made.Key.Secret)
	return newClient(t, made.Key.Secret)
}

// putRule creates or replaces a rule, and returns when the rule is in force at all given instances.
func (c *client) putRule(slug, fields string, instances ...*instance) {
	c.t.Helper()
	got, err := c.try(http.MethodPut, instances[0].URL()+"/v1/rules/"+slug, fields)
	require.NoError(c.t, err)
	require.Contains(c.t, []int{http.StatusOK, http.StatusCreated}, got.status, "%s", got.body)
	for _, i := range instances {
		require.Eventually(c.t, func() bool {
			peek, err := c.try(http.MethodPost, i.URL()+"/v1/check", `{"subject":"peek","resource":"`+slug+`","cost":0}`)
			return err == nil && strings.Contains(string(peek.body), `"rule":"`+slug+`"`)
		}, patience, tick, "the rule is not in force")
	}
}
