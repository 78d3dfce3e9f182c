package gateways

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// limit is the rule's limit for one subject.
const limit = 3

// A world is a Weir server with a tenant whose gateways are tested, and a tenant that is over its
// own quota. The plan enterprise is unlimited, and customers must not get it by a trick.
type world struct {
	t        testing.TB
	url      string
	secure   string // the same over HTTPS, if the world has certificates
	grpc     string // the address of Envoy's service
	operator string
	keys     map[string]string
}

func newWorld(t testing.TB) *world { return newWorldWith(t, nil) }

// newWorldWith returns a world with further settings.
func newWorldWith(t testing.TB, more harness.Settings) *world {
	t.Helper()
	settings := harness.NewSettings(t).With(more)
	grpc := freeAddress(t)
	settings["WEIR_GRPC_ADDR"] = grpc
	settings["WEIR_TRUSTED_PROXIES"] = "127.0.0.1/32" // the gateways; customers have other addresses
	server := harness.Start(t, settings).AwaitReady()
	stdout, stderr, code := harness.Run(t, settings, "operator-key", "create", "gateways")
	require.Zero(t, code, stderr)
	w := &world{t: t, url: server.URL(), grpc: grpc, operator: strings.TrimSpace(stdout)}
	if settings["WEIR_HTTPS_ADDR"] != "" {
		w.secure = server.HTTPSURL()
	}
	w.keys = map[string]string{"gateway": w.tenant("gateways"), "exhausted": w.tenant("exhausted"), "other": w.tenant("other")}
	key := w.keys["gateway"]
	w.call(key, http.MethodPut, "/v1/rules/api", `{"resource":"*","algorithm":"fixed_window_first_hit","limit":3,"window":"1h"}`)
	w.call(key, http.MethodPut, "/v1/plans/free", `{}`) // the first plan is the default
	w.call(key, http.MethodPut, "/v1/plans/enterprise", `{"limits":{"api":{"unlimited":true}}}`)
	w.call(w.operator, http.MethodPut, "/v1/rules/checks", `{"resource":"checks","algorithm":"fixed_window_first_hit","limit":1000000,"window":"1h"}`)
	w.call(w.operator, http.MethodPut, "/v1/subjects/exhausted", `{}`)
	w.call(w.operator, http.MethodPut, "/v1/subjects/exhausted/overrides/checks", `{"limit":1,"reason":"its quota is used up"}`)
	w.await(key, http.StatusTooManyRequests, "allow")
	w.await(w.keys["exhausted"], http.StatusServiceUnavailable, "none")
	return w
}

// await sends requests for one subject until Weir answers with this status.
func (w *world) await(key string, status int, _ string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		request, err := http.NewRequest(http.MethodGet, w.url+"/v1/authorize", nil)
		require.NoError(w.t, err)
		request.Header.Set("Weir-Key", key)
		request.Header.Set("Weir-Subject", "awaited")
		response, err := http.DefaultClient.Do(request)
		require.NoError(w.t, err)
		defer response.Body.Close()
		return response.StatusCode == status
	}, harness.Patience, harness.Tick)
}

func (w *world) tenant(slug string) (key string) {
	var made struct {
		Key struct{ Secret string }
	}
	body := w.call(w.operator, http.MethodPost, "/v1/tenants", `{"slug":"`+slug+`","name":"`+slug+`"}`)
	require.NoError(w.t, json.Unmarshal(body, &made))
	return made.Key.Secret
}

func (w *world) call(key, method, path, body string) []byte {
	w.t.Helper()
	request, err := http.NewRequest(method, w.url+path, strings.NewReader(body))
	require.NoError(w.t, err)
	request.Header.Set("Authorization", "Bearer "+key)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	require.NoError(w.t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	require.Less(w.t, response.StatusCode, 300, "%s %s: %s", method, path, answer)
	return answer
}
