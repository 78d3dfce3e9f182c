package browser

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// device sends a request of a program that has no key yet.
func (w *world) device(path string, body any) (out map[string]any) {
	w.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(w.t, err)
	response, err := http.Post(w.env["WEIR_URL"]+path, "application/json", bytes.NewReader(text))
	require.NoError(w.t, err)
	defer response.Body.Close()
	require.NoError(w.t, json.NewDecoder(response.Body).Decode(&out))
	return out
}

// A member opens the link of a terminal, compares the code, and approves; another one denies. The
// key that the terminal gets works, and is in the list.
func TestDeviceLogin(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	ask := func() (code any, user string) {
		login := w.device("/v1/device-logins", map[string]any{"machine": "ann’s laptop", "scopes": []string{"check", "read"}})
		return map[string]any{"device_code": login["device_code"]}, login["user_code"].(string)
	}
	code, user := ask()
	p := w.as(tenants.Admin).open("/device").sees("Enter it here").check()
	p.fill("Code", user).click("Continue").sees(user).sees("ann’s laptop").sees("read: read the configuration").sees("Approve only if you started").check()
	p.phone().check()
	p.desktop()
	require.Equal(t, "pending", w.device("/v1/device-logins/poll", code)["status"])
	p.click("Approve").at("/keys").sees("is signed in within a few seconds").check()
	poll := w.device("/v1/device-logins/poll", code)
	require.Equal(t, "approved", poll["status"])
	require.True(t, w.ask(poll["key"].(map[string]any)["secret"].(string), "user_1", "orders"))
	p.open("/keys").sees("weir on ann’s laptop")

	code, user = ask()
	w.as(tenants.Viewer).open("/device?code=" + user).sees("Only an owner or an admin").hasNot("Approve").check()
	p.open("/device?code=" + user).click("Deny").sees("gets no key")
	require.Equal(t, "denied", w.device("/v1/device-logins/poll", code)["status"])
	p.openFor("/device?code="+user, http.StatusNotFound).sees("No terminal waits with this code").check()
}
