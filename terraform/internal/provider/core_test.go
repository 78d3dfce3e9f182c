//go:build server

package provider

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	ctyjson "github.com/zclconf/go-cty/cty/json"

	"weir/terraform/internal/core"
)

// inProcess is a workspace of package core.
type inProcess struct {
	testing.TB
	*core.Core
}

func newInProcess(t testing.TB) *inProcess {
	p := New("test")
	p.getenv = func(string) string { return "" }
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
