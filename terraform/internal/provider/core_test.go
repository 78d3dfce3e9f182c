//go:build server

package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"weir/terraform/internal/core"
)

// inProcess is a workspace of package core.
type inProcess struct {
	testing.TB
	*core.Core
}

func newInProcess(t testing.TB) *inProcess { return newInProcessThrough(t, nil) }

// newInProcessThrough returns a workspace that sends its requests through a transport, without
// pauses between attempts if there is one.
func newInProcessThrough(t testing.TB, transport http.RoundTripper) *inProcess {
	p := New("test")
	p.getenv = func(string) string { return "" }
	if p.transport = transport; transport != nil {
		p.pause = func(context.Context, time.Duration) error { return nil }
	}
	c, err := core.New(providerserver.NewProtocol6(p)())
	if err != nil {
		t.Fatal(err)
	}
	return &inProcess{t, c}
}

func (w *inProcess) State(address string) map[string]any {
	value, found := w.Value(address)
	if !found {
		return nil
	}
	encoded, err := ctyjson.Marshal(value, value.Type())
	if err != nil {
		w.Fatal(err)
	}
	return decodeJSON(w, encoded)
}

func (w *inProcess) Warned() string { return strings.Join(w.Warnings, "\n") }

func decodeJSON(t testing.TB, encoded []byte) (out map[string]any) {
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber()
	if err := decoder.Decode(&out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestScenarios(t *testing.T) {
	runScenarios(t, func(t *testing.T) workspace { return newInProcess(t) })
}

// TestSchemasAreCurrent compares the schemas of the provider with the API.
func TestSchemasAreCurrent(t *testing.T) {
	response, err := http.Get(environment(t, "WEIR_TEST_URL") + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	document, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	want, err := ExtractSchemas(document)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("WEIR_TEST_UPDATE") != "" {
		if err := os.WriteFile("schemas.json", want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if !bytes.Equal(want, schemasFile) {
		t.Error("schemas.json differs from the OpenAPI document of the server. Run make generate-terraform")
	}
}

// lossy drops the answers to the first requests with a method and a path, after the server has
// carried them out.
type lossy struct {
	method, path string
	left         atomic.Int64
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && r.Method == l.method && r.URL.Path == l.path && l.left.Add(-1) >= 0 {
		response.Body.Close()
		return nil, errors.New("the answer was lost")
	}
	return response, err
}

// TestLostAnswers verifies that writes whose answers are lost are carried out once.
func TestLostAnswers(t *testing.T) {
	lose := &lossy{}
	w := newInProcessThrough(t, lose)
	b := &bench{TB: t, workspace: w}
	b.url, b.key = newTenant(t)
	config := func(limit int) string {
		return b.config(fmt.Sprintf(`
resource "weir_rule" "api" {
  slug   = "api"
  limit  = %d
  window = "1m"
}
resource "weir_key" "k" {
  name   = "once"
  scopes = ["check"]
}
`, limit))
	}
	step := func(method, path string, f func()) {
		lose.method, lose.path = method, path
		lose.left.Store(2)
		f()
		if lose.left.Load() > 0 {
			t.Errorf("no answer to %s %s was lost", method, path)
		}
		lose.method = ""
	}
	step(http.MethodPost, "/v1/rules", func() { b.applies(config(1), "create weir_key.k", "create weir_rule.api") })
	step(http.MethodPatch, "/v1/rules/api", func() { b.applies(config(2), "update weir_rule.api") })
	b.stored("/v1/rules/api", map[string]any{"limit": 2})
	b.api(http.MethodDelete, "/v1/keys/"+b.State("weir_key.k")["id"].(string), "")
	step(http.MethodPost, "/v1/keys", func() { b.applies(config(2), "create weir_key.k") })
	state := b.State("weir_key.k")
	if secret, _ := state["secret"].(string); !strings.HasPrefix(secret, "weir_key_") {
		t.Errorf("the secret was lost: %q", secret)
	}
	inForce := 0
	for _, item := range b.api(http.MethodGet, "/v1/keys", "")["items"].([]any) {
		if key := item.(map[string]any); key["name"] == "once" && key["revoked_at"] == nil {
			inForce++
		}
	}
	if inForce != 1 {
		t.Errorf("%d keys are in force", inForce)
	}
	step(http.MethodDelete, "/v1/rules/api", func() {
		actions, err := b.Apply(b.config(""))
		b.must(err)
		b.equal(lines(actions), []string{"delete weir_key.k", "delete weir_rule.api"})
	})
}
