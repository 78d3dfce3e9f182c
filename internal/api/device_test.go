package api

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A program asks for codes, polls, and gets a key that works, once.
func TestDeviceLogins(t *testing.T) {
	s := newAdminStack(t)
	asked := s.call("", http.MethodPost, deviceLoginPath, obj{"machine": "laptop", "scopes": []string{"read"}}).ok(201).json()
	code, user := asked["device_code"].(string), asked["user_code"].(string)
	require.Equal(t, s.url+"/device", asked["verification_uri"])
	require.Equal(t, s.url+"/device?code="+user, asked["verification_uri_complete"])
	require.EqualValues(t, 600, asked["expires_in"])
	require.EqualValues(t, 5, asked["interval"])
	poll := func() map[string]any {
		return s.call("", http.MethodPost, devicePollPath, obj{"device_code": code}).ok(200).json()
	}
	require.Equal(t, "pending", poll()["status"])
	slow := poll()
	require.Equal(t, "slow_down", slow["status"])
	require.EqualValues(t, 10, slow["interval"])

	_, err := s.store.CreateMember(t.Context(), s.a, "ann@example.com", "correct horse battery", tenants.Owner)
	require.NoError(t, err)
	ann, err := s.store.VerifyPassword(t.Context(), "ann@example.com", "correct horse battery")
	require.NoError(t, err)
	token, err := s.store.StartSession(t.Context(), ann, "", "")
	require.NoError(t, err)
	session, err := s.store.Session(t.Context(), token)
	require.NoError(t, err)
	seen, err := s.store.DeviceLogin(t.Context(), user)
	require.NoError(t, err)
	require.NoError(t, s.store.ApproveDeviceLogin(t.Context(), session, seen))

	got := poll()
	require.Equal(t, "approved", got["status"])
	require.Equal(t, "tenant-a", got["tenant"])
	key := got["key"].(map[string]any)
	secret := key["secret"].(string)
	require.Equal(t, []any{"read"}, key["scopes"])
	s.call(secret, http.MethodGet, "/v1/rules", nil).ok(200)
	s.call(secret, http.MethodPut, "/v1/plans/pro", obj{}).problem(http.StatusForbidden, codeInsufficientScope)
	again := poll()
	require.Equal(t, "expired", again["status"])
	require.NotContains(t, again, "key")
	require.NotContains(t, s.log.String(), secret)
	require.NotContains(t, s.log.String(), code)

	// The key of one tenant is none of another, and can be revoked.
	id := key["id"].(string)
	s.call(s.other, http.MethodGet, "/v1/keys/"+id, nil).problem(http.StatusNotFound, codeNotFound)
	s.call(s.key, http.MethodDelete, "/v1/keys/"+id, nil).ok(204)
	trail := s.call(s.key, http.MethodGet, "/v1/audit?target="+id, nil).ok(200)
	require.Contains(t, string(trail.body), "ann@example.com")
}

func TestDeviceLoginsRefused(t *testing.T) {
	s := newAdminStack(t)
	for body, code := range map[string]string{
		`{`: codeMalformedJSON, `[]`: codeMalformedJSON, `{"machine":"m"} {}`: codeMalformedJSON, `{"machine":"m","tenant":"a"}`: codeUnknownField,
		`{"machine":""}`: codeInvalidRequest, `{"machine":"m","scopes":[]}`: codeInvalidRequest, `{"machine":"m","scopes":["root"]}`: codeInvalidRequest,
		`{"machine":7}`: codeInvalidRequest,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+deviceLoginPath, strings.NewReader(body))
		require.NoError(t, err)
		require.Equal(t, code, s.send(r).json()["code"], body)
	}
	for _, c := range []struct {
		body any
		code string
	}{{obj{"code": "x"}, codeUnknownField}, {obj{"device_code": 7}, codeInvalidRequest}, {[]string{"x"}, codeMalformedJSON}} {
		refused := s.call("", http.MethodPost, devicePollPath, c.body)
		require.Equal(t, c.code, refused.json()["code"], c.body)
		require.GreaterOrEqual(t, refused.status, http.StatusBadRequest)
	}
	for _, unknown := range []string{"", "x", strings.Repeat("A", 43)} {
		require.Equal(t, "expired", s.call("", http.MethodPost, devicePollPath, obj{"device_code": unknown}).ok(200).json()["status"])
	}
	refused := s.call("", http.MethodPost, deviceLoginPath, obj{"machine": strings.Repeat("m", maxDeviceBody)})
	require.Equal(t, http.StatusRequestEntityTooLarge, refused.status)
}

// One address cannot ask without limit, and cannot keep others from signing in.
func TestDeviceLoginsAreLimited(t *testing.T) {
	s := newAdminStack(t)
	for range 10 {
		s.call("", http.MethodPost, deviceLoginPath, obj{"machine": "m"}).ok(201)
	}
	refused := s.call("", http.MethodPost, deviceLoginPath, obj{"machine": "m"})
	refused.problem(http.StatusTooManyRequests, codeLoginRateExceeded)
	require.NotEmpty(t, refused.header.Get("Retry-After"))
	s.call("", http.MethodPost, devicePollPath, obj{"device_code": "x"}).ok(200)
}

// Nor can a client with all networks of a site: the instance has more than twice as many sign-ins.
func TestDeviceLoginsOfWideNetworks(t *testing.T) {
	t.Parallel()
	d := newDevices(&server{})
	may := func(address string) bool {
		r := httptest.NewRequest(http.MethodPost, deviceLoginPath, nil)
		r.RemoteAddr = net.JoinHostPort(address, "1234")
		return d.mayStart(r) == 0
	}
	for site := range 2 {
		counted := 0
		for i := range 200 {
			if may(fmt.Sprintf("2001:db8:%x:%x::1", site, i*64)) {
				counted++
			}
		}
		require.Less(t, counted, 50, "45, and what is refilled meanwhile")
	}
	require.True(t, may("2001:db8:3::1"))
}
