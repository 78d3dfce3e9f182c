//go:build server

package provider

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"weir/terraform/internal/core"
)

func environment(t testing.TB, name string) string {
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: run make test-terraform", name)
	}
	return value
}

// newTenant creates a tenant and returns its key.
func newTenant(t testing.TB) (url, key string) {
	url = environment(t, "WEIR_TEST_URL")
	slug := fmt.Sprintf("terraform-%d-%d", os.Getpid(), tenants.Add(1))
	b := &bench{TB: t, url: url, key: environment(t, "WEIR_TEST_OPERATOR_KEY")}
	tenant := b.api(http.MethodPost, "/v1/tenants", `{"slug":"`+slug+`"}`)
	secret, _ := tenant["key"].(map[string]any)["secret"].(string)
	return url, secret
}

// api calls the API behind Terraform's back.
func (b *bench) api(method, path, body string) map[string]any {
	b.Helper()
	status, answer := b.ask(method, path, body)
	if status >= 300 {
		b.Fatalf("%s %s: %d %v", method, path, status, answer)
	}
	return answer
}

func (b *bench) ask(method, path, body string) (int, map[string]any) {
	b.Helper()
	var content io.Reader = http.NoBody
	if body != "" {
		content = strings.NewReader(body)
	}
	r, err := http.NewRequest(method, b.url+path, content)
	b.must(err)
	r.Header.Set("Authorization", "Bearer "+b.key)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(r)
	b.must(err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	b.must(err)
	var answer map[string]any
	if len(raw) > 0 {
		decoder := json.NewDecoder(bytes.NewReader(raw))
		decoder.UseNumber()
		b.must(decoder.Decode(&answer))
	}
	return response.StatusCode, answer
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// applies applies a configuration, compares what was done with "action address" lines, and verifies
// that a second apply has nothing to do.
func (b *bench) applies(config string, want ...string) {
	b.Helper()
	actions, err := b.Apply(config)
	b.must(err)
	b.equal(lines(actions), want)
	b.settled(config)
}

// settled verifies that there is nothing to do.
func (b *bench) settled(config string) {
	b.Helper()
	actions, err := b.Plan(config)
	b.must(err)
	b.equal(lines(actions), nil)
}

// plans compares what an apply would do.
func (b *bench) plans(config string, want ...string) {
	b.Helper()
	actions, err := b.Plan(config)
	b.must(err)
	b.equal(lines(actions), want)
}

// refused verifies that an apply fails with an error that has all texts.
func (b *bench) refused(config string, texts ...string) {
	b.Helper()
	_, err := b.Apply(config)
	if err == nil {
		b.Fatalf("the apply succeeded, want an error with %q", texts)
	}
	flat := flatten(err.Error())
	for _, text := range texts {
		if !strings.Contains(flat, text) {
			b.Errorf("the error has no %q: %s", text, flat)
		}
	}
}

// flatten removes the frame and the line breaks that Terraform adds to messages.
func flatten(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \n│╷╵", r) }), " ")
}

func lines(actions map[string]core.Action) (out []string) {
	for _, address := range slices.Sorted(maps.Keys(actions)) {
		out = append(out, string(actions[address])+" "+address)
	}
	return out
}

func (b *bench) equal(got, want []string) {
	b.Helper()
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.Fatalf("got %q, want %q", got, want)
	}
}

// has compares attributes of the state, written as JSON: `name = "api"`.
func (b *bench) has(address string, want map[string]any) {
	b.Helper()
	compare(b, address, b.State(address), want)
}

// stored compares fields of an object of the server.
func (b *bench) stored(path string, want map[string]any) {
	b.Helper()
	compare(b, path, b.api(http.MethodGet, path, ""), want)
}

func compare(b *bench, name string, object, want map[string]any) {
	b.Helper()
	for _, field := range slices.Sorted(maps.Keys(want)) {
		got, err := json.Marshal(object[field])
		b.must(err)
		expected, err := json.Marshal(want[field])
		b.must(err)
		if !bytes.Equal(got, expected) {
			b.Errorf("%s: %s is %s, want %s", name, field, got, expected)
		}
	}
}

// config begins with the provider, whose url and key come from the environment.
func (b *bench) config(resources string) string {
	return "provider \"weir\" {\n  url = " + strconv.Quote(b.url) + "\n  key = " + strconv.Quote(b.key) + "\n}\n" + resources
}

// A bench is a tenant of its own, with an empty workspace.
type bench struct {
	testing.TB
	workspace
	url, key string
}
