package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// loginServer answers polls with these bodies in turn; a number is a status without a body.
func loginServer(t *testing.T, polls ...any) (address string, asked *map[string]any) {
	t.Helper()
	asked = &map[string]any{}
	next := 0
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/device-logins", func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewDecoder(r.Body).Decode(asked)
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"device_code":"secret-code","user_code":"BCDF-GHJK\u001b[2J","verification_uri":"https://weir.example/device",
			"verification_uri_complete":"https://weir.example/device?code=BCDF-GHJK","expires_in":600,"interval":5}`))
	})
	mux.HandleFunc("POST /v1/device-logins/poll", func(w http.ResponseWriter, r *http.Request) {
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		if body["device_code"] != "secret-code" || r.URL.RawQuery != "" || r.Header.Get("Authorization") != "" {
			t.Errorf("a poll with %v", body)
		}
		if next == len(polls) {
			t.Error("one poll too many")
		}
		next++
		switch answer := polls[min(next, len(polls))-1].(type) {
		case int:
			w.WriteHeader(answer)
		case string:
			_, _ = w.Write([]byte(answer))
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL, asked
}

const approved = `{"status":"approved","interval":null,"tenant":"acme","key":{"secret":"weir_secret","name":"weir on laptop","expires_at":"2027-02-22T00:00:00Z"}}`

// login runs weir login, and returns the times for which it waited.
func login(t *testing.T, home string, args ...string) (stderr string, code int, waits []time.Duration) {
	t.Helper()
	var out, err bytes.Buffer
	now := make(chan time.Time)
	close(now)
	term := &terminal{
		in: strings.NewReader(""), out: &out, err: &err,
		getenv: func(name string) string { return map[string]string{"XDG_CONFIG_HOME": home}[name] },
		wait: func(d time.Duration) <-chan time.Time {
			waits = append(waits, d)
			return now
		},
	}
	code = run(t.Context(), term, append([]string{"login"}, args...))
	require.Empty(t, out.String())
	return err.String(), code, waits
}

// The command waits as the server says, also while the server is unavailable, and stores the key
// for its owner only.
func TestLoginInBrowser(t *testing.T) {
	url, asked := loginServer(t, `{"status":"pending","interval":5}`, `{"status":"slow_down","interval":10}`, 503, 429, `{"status":"pending","interval":10}`, approved)
	home := t.TempDir()
	stderr, code, waits := login(t, home, url, "--machine", "laptop")
	require.Zero(t, code, stderr)
	require.Equal(t, map[string]any{"machine": "laptop", "scopes": []any{"check", "read", "write"}}, *asked)
	require.Equal(t, []time.Duration{5 * time.Second, 5 * time.Second, 10 * time.Second, 15 * time.Second, 20 * time.Second, 10 * time.Second}, waits)
	require.Contains(t, stderr, "https://weir.example/device?code=BCDF-GHJK\n")
	require.Contains(t, stderr, "BCDF-GHJK\ufffd[2J", "without control characters")
	require.NotContains(t, stderr, "secret")
	require.Contains(t, stderr, `Signed in to acme with the key "weir on laptop", which expires on 2027-02-22`)
	name := filepath.Join(home, "weir", "login.json")
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	content, err := os.ReadFile(name)
	require.NoError(t, err)
	require.JSONEq(t, `{"url":"`+url+`","key":"weir_secret"}`, string(content))
}

func TestLoginRefused(t *testing.T) {
	for answer, want := range map[string]string{
		`{"status":"denied"}`: "denied", `{"status":"expired"}`: "run weir login again", `{"status":"new"}`: "unknown state",
	} {
		url, asked := loginServer(t, answer)
		home := t.TempDir()
		stderr, code, _ := login(t, home, url, "--scope", "read")
		require.Equal(t, 1, code)
		require.Contains(t, stderr, want)
		require.Equal(t, []any{"read"}, (*asked)["scopes"])
		require.NotEmpty(t, (*asked)["machine"])
		require.NoFileExists(t, filepath.Join(home, "weir", "login.json"))
	}
	url, _ := loginServer(t, 422)
	_, code, _ := login(t, t.TempDir(), url)
	require.Equal(t, 1, code)
	old := httptest.NewServer(http.NotFoundHandler())
	defer old.Close()
	stderr, code, _ := login(t, t.TempDir(), old.URL)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "weir login --with-key")
	stderr, code, _ = login(t, "", old.URL)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "neither XDG_CONFIG_HOME nor HOME is set", "before a key is created that cannot be stored")
}
