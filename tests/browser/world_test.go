package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/seal"
	"weir/internal/tenants"
	"weir/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// password is the password of all people whom tests create.
const password = "correct horse battery"

// service is the server of all tests in the package, with the demo's data.
type service struct {
	url   string // http://localhost:PORT
	store *tenants.Store
	demo  tenants.Tenant
	env   map[string]string // of demo.env
}

var running = sync.OnceValue(func() *service {
	t := harness.Shared()
	dir, err := os.MkdirTemp("", "weir-browser-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	key := seal.NewKey()
	ring, err := seal.Parse(key)
	require.NoError(t, err)
	settings := harness.NewSettings(t).With(harness.Settings{"WEIR_ENCRYPTION_KEY": key})
	i := harness.StartDemo(t, settings, dir)
	s := &service{env: harness.DemoEnv(t, dir)}
	address := i.Address("WEIR_HTTP_ADDR")
	s.url = "http://localhost" + address[strings.LastIndex(address, ":"):]
	ctx := context.Background()
	s.store, err = tenants.Open(ctx, tenants.Config{DatabaseURL: settings["WEIR_DATABASE_URL"], Seal: ring})
	require.NoError(t, err)
	t.Cleanup(s.store.Close)
	s.demo, err = s.store.TenantBySlugOrID(ctx, tenants.AsOperator("tests"), "demo")
	require.NoError(t, err)
	return s
})

// world is one tenant of the service, with people of each role.
type world struct {
	*service
	t      *testing.T
	tenant tenants.Tenant
	actor  tenants.Actor // may change everything in the tenant
	made   map[tenants.Role]bool
}

// demo returns the tenant of the demo. All tests share it, so they must not change it.
func demo(t *testing.T) *world {
	t.Helper()
	s := running()
	return &world{s, t, s.demo, tenants.AsSystem(s.demo.ID, "tests"), nil}
}

var tenantNumber atomic.Int64

// newTenant creates an empty tenant for the test.
func newTenant(t *testing.T) *world {
	t.Helper()
	s := running()
	slug := fmt.Sprintf("walk-%04d", tenantNumber.Add(1)) // sorts as text
	tenant, _, _, err := s.store.CreateTenant(t.Context(), tenants.AsOperator("tests"), tenants.NewTenant{Slug: slug, Name: "Tenant of " + t.Name()})
	require.NoError(t, err)
	return &world{s, t, tenant, tenants.AsSystem(tenant.ID, "tests"), map[tenants.Role]bool{}}
}

// person creates a login with a role in the tenant, unless it exists, and returns its email.
func (w *world) person(role tenants.Role) string {
	w.t.Helper()
	email := string(role) + "@" + w.tenant.Slug + ".example"
	if !w.made[role] {
		_, err := w.store.CreateMember(w.t.Context(), w.actor, email, password, role)
		require.NoError(w.t, err)
		w.made[role] = true
	}
	return email
}

// as returns a page of a person with that role, who is signed in.
func (w *world) as(role tenants.Role) *page {
	w.t.Helper()
	if w.tenant.ID != w.service.demo.ID {
		return w.signedIn(w.person(role), password)
	}
	if role == tenants.Owner {
		return w.signedIn(w.env["WEIR_EMAIL"], w.env["WEIR_PASSWORD"])
	}
	return w.signedIn(string(role)+"@weir.example", w.env["WEIR_PASSWORD"])
}

// operator returns a page of an operator of the service: an owner of the tenant platform.
func (w *world) operator() *page {
	w.t.Helper()
	return w.signedIn(w.env["WEIR_OPERATOR_EMAIL"], w.env["WEIR_OPERATOR_PASSWORD"])
}

// visitor returns a page of a visitor who is not signed in.
func (w *world) visitor() *page {
	w.t.Helper()
	return newPage(w.t, w.service)
}

// signedIn returns a page of a person who has just signed in. The form of the sign-in page has its
// own test.
func (w *world) signedIn(email, password string) *page {
	w.t.Helper()
	client := w.client(email, password)
	u, err := url.Parse(w.url)
	require.NoError(w.t, err)
	p := w.visitor()
	for _, c := range client.Jar.Cookies(u) {
		p.setCookie(c.Name, c.Value)
	}
	return p
}

// rule creates a rule with a limit per hour and subject, for the resource with the same name. The
// window is longer than any test. The rule is created through the service, so that it is in force
// immediately.
func (w *world) rule(slug string, limit int64) {
	w.t.Helper()
	status, answer := w.post(w.key(), "/v1/rules", map[string]any{
		"slug": slug, "name": strings.ToUpper(slug[:1]) + slug[1:], "resource": slug, "limit": limit, "window": "1h",
	})
	require.Equal(w.t, http.StatusCreated, status, "%s", answer)
}

// key creates an API key of the tenant with all scopes and returns its secret.
func (w *world) key() string {
	w.t.Helper()
	_, key, err := w.store.CreateKey(w.t.Context(), w.actor, tenants.NewAPIKey{Name: "tests", Scopes: tenants.AllScopes})
	require.NoError(w.t, err)
	return key.Secret()
}

// ask sends a check, and reports whether it was allowed.
func (w *world) ask(key, subject, resource string) bool {
	w.t.Helper()
	status, answer := w.post(key, "/v1/check", map[string]any{"subject": subject, "resource": resource})
	require.Contains(w.t, []int{http.StatusOK, http.StatusTooManyRequests}, status, "%s", answer)
	return status == http.StatusOK
}

// counted sends one check for each of PREFIX_1, PREFIX_2 and so on, and returns the first subject
// whose check Redis has counted. On a busy machine a check may be degraded: then only the instance
// has counted it, and pages that read the counters do not show it.
func (w *world) counted(key, prefix, resource string) string {
	w.t.Helper()
	for n := 1; n <= 20; n++ {
		if subject := fmt.Sprintf("%s_%d", prefix, n); w.counts(key, subject, resource) {
			return subject
		}
	}
	require.Fail(w.t, "no check is counted in Redis")
	return ""
}

// counts sends a check, which must be allowed, and reports whether Redis has counted it.
func (w *world) counts(key, subject, resource string) bool {
	w.t.Helper()
	status, answer := w.post(key, "/v1/check", map[string]any{"subject": subject, "resource": resource})
	require.Equal(w.t, http.StatusOK, status, "%s", answer)
	var decision struct{ Degraded *bool }
	require.NoError(w.t, json.Unmarshal(answer, &decision))
	require.NotNil(w.t, decision.Degraded, "%s", answer)
	return !*decision.Degraded
}

// post sends JSON to the API.
func (w *world) post(key, path string, content map[string]any) (status int, answer []byte) {
	w.t.Helper()
	body, err := json.Marshal(content)
	require.NoError(w.t, err)
	request, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+path, bytes.NewReader(body))
	require.NoError(w.t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	require.NoError(w.t, err)
	return response.StatusCode, answer
}
