package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

func (s *stack) device(machine string, scopes ...tenants.Scope) (tenants.DeviceLogin, string) {
	s.t.Helper()
	login, code, err := s.store.StartDeviceLogin(s.t.Context(), tenants.NewDeviceLogin{Machine: machine, Address: "192.0.2.7", Scopes: scopes})
	require.NoError(s.t, err)
	return login, code
}

func (s *stack) poll(code string) tenants.DevicePoll {
	s.t.Helper()
	poll, err := s.store.PollDeviceLogin(s.t.Context(), code)
	require.NoError(s.t, err)
	return poll
}

func sentCode(l tenants.DeviceLogin) []string {
	return []string{"code", l.UserCode, "login", l.ID.String()}
}

// A member sees what is asked for. Opening the page grants nothing.
func TestDevicePage(t *testing.T) {
	s := newStack(t)
	login, code := s.device("build <b>server</b>", tenants.ScopeCheck, tenants.ScopeManage)
	link := deviceURL + "?code=" + login.UserCode
	got := s.browser().get(link)
	require.Equal(t, "/login?next="+url.QueryEscape(link), got.header.Get("Location"), "back after the sign-in")

	ann := s.as("ann@example.com")
	require.Contains(t, ann.get(deviceURL).body, "Enter it here")
	got = ann.get(link)
	require.Equal(t, http.StatusOK, got.status)
	for _, want := range []string{login.UserCode, "build &lt;b&gt;server&lt;/b&gt;", "192.0.2.7", "manage: change API keys", "send checks", "expires in 90 days"} {
		require.Contains(t, got.body, want)
	}
	require.NotContains(t, got.body, "read: read the configuration")
	require.NotContains(t, got.body, code, "the secret of the terminal")
	require.Equal(t, tenants.DevicePending, s.poll(code).State)

	for _, wrong := range []string{"BCDF-GHJK", "%3Cscript%3E", "x"} {
		got = ann.get(deviceURL + "?code=" + wrong)
		require.Equal(t, http.StatusNotFound, got.status)
		require.Contains(t, got.body, "No terminal waits with this code")
	}
}

// The password is needed as for every new key, and the key appears in the list.
func TestDeviceApproved(t *testing.T) {
	s := newStack(t)
	login, code := s.device("laptop", tenants.ScopeRead)
	ann := s.as("ann@example.com")
	s.clock.move(20 * time.Minute) // the password was entered too long ago
	login, code = s.device("laptop", tenants.ScopeRead)
	got := ann.post(deviceURL, s.inTenant(s.a, sentCode(login)...))
	require.Equal(t, http.StatusForbidden, got.status)
	require.Contains(t, got.body, "Confirm your password")
	require.Equal(t, tenants.DevicePending, s.poll(code).State)

	got = ann.post(deviceURL, s.inTenant(s.a, append(sentCode(login), confirmField, password)...))
	require.Equal(t, http.StatusSeeOther, got.status)
	require.Contains(t, ann.get("/keys").body, "laptop is signed in within a few seconds")
	poll := s.poll(code)
	require.Equal(t, tenants.DeviceApproved, poll.State)
	require.Equal(t, s.a.TenantID(), poll.Tenant.TenantID)
	require.Contains(t, ann.get("/keys").body, "weir on laptop")
	require.Contains(t, ann.get("/settings/security").body, "Terminal sign-in approved")

	got = ann.post(deviceURL, s.inTenant(s.a, sentCode(login)...))
	require.Equal(t, http.StatusNotFound, got.status, "a code works once")
}

// Who may not create keys may not approve, and a form is for the tenant and the sign-in that it
// showed.
func TestDeviceRefused(t *testing.T) {
	s := newStack(t)
	s.member(s.a, "eve@example.com", tenants.Viewer)
	login, code := s.device("laptop", tenants.ScopeRead)
	eve, ann, bob := s.as("eve@example.com"), s.as("ann@example.com"), s.as("bob@example.com")
	got := eve.get(deviceURL + "?code=" + login.UserCode)
	require.Contains(t, got.body, "Only an owner or an admin")
	require.NotContains(t, got.body, "Approve</button>")
	for _, path := range []string{deviceURL, denyDeviceURL} {
		require.Equal(t, http.StatusForbidden, eve.post(path, s.inTenant(s.a, sentCode(login)...)).status)
		require.Equal(t, http.StatusConflict, ann.post(path, s.inTenant(s.b, sentCode(login)...)).status, "the form of another tenant")
		other := s.inTenant(s.a, "code", login.UserCode, "login", "00000000-0000-4000-8000-000000000000")
		require.Equal(t, http.StatusNotFound, ann.post(path, other).status)
	}
	require.Equal(t, tenants.DevicePending, s.poll(code).State)

	require.Equal(t, http.StatusSeeOther, ann.post(denyDeviceURL, s.inTenant(s.a, sentCode(login)...)).status)
	require.Equal(t, http.StatusNotFound, bob.get(deviceURL+"?code="+login.UserCode).status, "another tenant's sign-in does not exist")
	require.Equal(t, http.StatusNotFound, bob.post(deviceURL, s.inTenant(s.b, sentCode(login)...)).status)
	require.Equal(t, tenants.DeviceDenied, s.poll(code).State)
}

// Codes cannot be tried without limit.
func TestDeviceCodesAreLimited(t *testing.T) {
	s := newStack(t)
	ann := s.as("ann@example.com")
	for range 20 {
		require.Equal(t, http.StatusNotFound, ann.get(deviceURL+"?code=BCDF-GHJK").status)
	}
	login, _ := s.device("laptop", tenants.ScopeRead)
	got := ann.get(deviceURL + "?code=" + login.UserCode)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.NotEmpty(t, got.header.Get("Retry-After"))
	require.NotContains(t, got.body, "laptop")
}
