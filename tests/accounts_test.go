package tests

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Behind a proxy, the audit trail has the client's address, and no client can forge it.
func TestClientBehindProxy(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	forwarded := http.Header{"X-Forwarded-For": {"203.0.113.9, 192.0.2.7"}}
	address := func(i *instance, tenant *client, name string) string {
		got, err := tenant.tryWith(http.MethodPatch, i.URL()+"/v1/tenant", `{"name":"`+name+`"}`, forwarded)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, got.status, "%s", got.body)
		return string(tenant.do(http.MethodGet, i.URL()+"/v1/audit?limit=1", "", http.StatusOK).body)
	}
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	require.Contains(t, address(i, tenant, "one"), `"address":"127.0.0.1"`, "the header of a proxy that is not trusted is ignored")
	require.Zero(t, i.Stop())
	i = start(t, s.With(settings{"WEIR_TRUSTED_PROXIES": "127.0.0.0/8"})).AwaitReady()
	require.Contains(t, address(i, tenant, "two"), `"address":"192.0.2.7"`)
	require.Zero(t, i.Stop())
}

// If mail is off, the operator can create links for people.
func TestLinksOfOperator(t *testing.T) {
	t.Parallel()
	s := newSettings(t).With(settings{"WEIR_SIGNUP": "invite"})
	i := start(t, s).AwaitReady()
	_, stderr, code := runServer(t, s.With(settings{"WEIR_SIGNUP": "closed"}), "signup-link", "new@example.com")
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "WEIR_SIGNUP is closed")
	_, stderr, code = runServer(t, s, "signup-link", "nonsense")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "name@example.com")
	_, stderr, code = runServer(t, s, "password-link", "new@example.com")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "no login with this email")

	stdout, stderr, code := runServer(t, s, "signup-link", "new@example.com")
	require.Zero(t, code, stderr)
	require.Regexp(t, `^/signup/[A-Za-z0-9_-]{43}\n$`, stdout, "a path, because the public address is unknown")
	post := func(path, form string) int {
		response, err := newClient(t, "").http.Post(i.URL()+path, "application/x-www-form-urlencoded", strings.NewReader(form))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode
	}
	require.Equal(t, http.StatusUnprocessableEntity, post(strings.TrimSpace(stdout), "tenant=New&password=short"))
	require.Equal(t, http.StatusOK, post(strings.TrimSpace(stdout), "tenant=New&password=a+new+horse"), "redirected to the sign-in, without the cookie")

	stdout, stderr, code = runServer(t, s.With(settings{"WEIR_PUBLIC_URL": "https://weir.example"}), "password-link", "new@example.com")
	require.Zero(t, code, stderr)
	path, ours := strings.CutPrefix(strings.TrimSpace(stdout), "https://weir.example")
	require.True(t, ours, stdout)
	require.Equal(t, http.StatusOK, post(path, "password=another+new+horse"))
	require.Equal(t, http.StatusNotFound, post(path, "password=another+new+horse"))
	require.Zero(t, i.Stop())
	require.NotContains(t, i.Log(), strings.TrimPrefix(path, "/reset/"), "links are not logged")
}

// The first operator joins with a link. Later ones can be invited on the dashboard.
func TestOperatorLink(t *testing.T) {
	t.Parallel()
	s := newSettings(t)
	i := start(t, s).AwaitReady()
	_, stderr, code := runServer(t, s, "operator-link", "nonsense")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "name@example.com")
	link := func() string {
		stdout, stderr, code := runServer(t, s, "operator-link", "olga@example.com")
		require.Zero(t, code, stderr)
		require.Regexp(t, `^/invitation/[A-Za-z0-9_-]{43}\n$`, stdout)
		return strings.TrimSpace(stdout)
	}
	first, second := link(), link()
	browser := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	join := func(path string) *http.Response {
		response, err := browser.Post(i.URL()+path, "application/x-www-form-urlencoded", strings.NewReader("password=a+new+horse"))
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response
	}
	require.Equal(t, http.StatusNotFound, join(first).StatusCode, "a new link replaces the previous one")
	joined := join(second)
	require.Equal(t, http.StatusSeeOther, joined.StatusCode)
	for _, path := range []string{"/tenants", "/tenants/platform", "/instances"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL()+path, http.NoBody)
		require.NoError(t, err)
		for _, cookie := range joined.Cookies() {
			request.AddCookie(cookie)
		}
		response, err := browser.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode, path)
	}
	_, stderr, code = runServer(t, s, "operator-link", "olga@example.com")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "a member already")
	require.Zero(t, i.Stop())
	require.NotContains(t, i.Log(), strings.TrimPrefix(second, "/invitation/"), "links are not logged")
}

// Open sign-up without a bound of counters is reported at the start, and so is a tier that does not
// exist.
func TestUnboundedSignUpIsReported(t *testing.T) {
	s := newSettings(t).With(settings{"WEIR_SIGNUP": "open"})
	start(t, s).AwaitLog(`"msg":"WEIR_SIGNUP is open, and the tier of sign-ups has no bound of counters`)
	start(t, s.With(settings{"WEIR_SIGNUP_TIER": "gold"})).AwaitLog(`"msg":"WEIR_SIGNUP_TIER is not a plan`)
	bounded := start(t, s.With(settings{"WEIR_SIGNUP_TIER": "free"})).AwaitReady()
	require.NotContains(t, bounded.Log(), "WEIR_SIGNUP")
}
