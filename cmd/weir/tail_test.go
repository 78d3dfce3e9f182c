package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// decisionOf returns the JSON of a decision so many seconds after noon.
func decisionOf(second int, subject string, allowed bool) string {
	return fmt.Sprintf(`{"at":"2026-11-20T12:00:%02dZ","subject":%q,"resource":"orders","cost":1,"allowed":%t,"code":null,"rule":"api","limit":10,"remaining":3,"retry_after_ms":null,"repeats":0}`,
		second, subject, allowed)
}

func sendDecision(w io.Writer, decision string) {
	fmt.Fprintf(w, "event: decision\ndata: %s\n\n", decision)
}

// runTail runs tail against a server until it returns.
func runTail(t *testing.T, ctx context.Context, handler http.Handler, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	server := httptest.NewServer(handler)
	defer server.Close()
	var out, err bytes.Buffer
	env := map[string]string{"WEIR_URL": server.URL, "WEIR_KEY": "weir_key"}
	now := make(chan time.Time)
	close(now)
	shown := &terminal{in: strings.NewReader(""), out: &out, err: &err, getenv: func(name string) string { return env[name] },
		wait: func(time.Duration) <-chan time.Time { return now }}
	code = run(ctx, shown, args)
	return out.String(), err.String(), code
}

// A stream that ends is opened again, and what was decided in between is printed once, in order.
func TestTailConnectsAgain(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var streams atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/decisions", func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "Bearer weir_key", r.Header.Get("Authorization"))
		require.Equal(t, "true", r.URL.Query().Get("denied"))
		if streams.Load() == 1 {
			require.Equal(t, "2", r.URL.Query().Get("limit"))
			fmt.Fprintf(w, `{"items":[%s,%s]}`, decisionOf(2, "second", false), decisionOf(1, "first", false))
			return
		}
		require.Equal(t, "2026-11-20T11:59:53Z", r.URL.Query().Get("since"))
		fmt.Fprintf(w, `{"items":[%s,%s,%s]}`, decisionOf(4, "between", false), decisionOf(3, "third", false), decisionOf(2, "second", false))
	})
	mux.HandleFunc("GET /v1/decisions/stream", func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "api", r.URL.Query().Get("rule"))
		switch streams.Add(1) {
		case 1:
			fmt.Fprint(w, ": open\n\n")
			sendDecision(w, decisionOf(3, "third", false))
		case 2:
			http.Error(w, `{"title":"Too many streams are open","code":"TOO_MANY_STREAMS"}`, http.StatusTooManyRequests)
		case 3:
			fmt.Fprint(w, ": open\n\n")
			sendDecision(w, decisionOf(4, "between", false))
			sendDecision(w, decisionOf(5, "last", false))
		default:
			cancel()
		}
	})
	stdout, stderr, code := runTail(t, ctx, mux, "-o", "csv", "tail", "-n", "2", "--denied", "--rule", "api")
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "TOO_MANY_STREAMS")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	require.Equal(t, strings.Join(tailColumns, ","), lines[0])
	require.Len(t, lines, 6, stdout)
	for i, subject := range []string{"first", "second", "third", "between", "last"} {
		require.Equal(t, fmt.Sprintf("2026-11-20T12:00:%02dZ,false,%s,orders,1,api,10,3,,0", i+1, subject), lines[i+1])
	}
}

// What will not succeed later is an error: a wrong key, and a key that is revoked while it is used.
func TestTailEnds(t *testing.T) {
	const revoked = `{"status":401,"title":"The API key was revoked","code":"KEY_REVOKED"}`
	_, stderr, code := runTail(t, t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, revoked, http.StatusUnauthorized)
	}), "tail")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "KEY_REVOKED")

	stdout, stderr, code := runTail(t, t.Context(), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		sendDecision(w, decisionOf(1, "ada", true))
		fmt.Fprintf(w, "event: end\ndata: %s\n\n", revoked)
	}), "-o", "json", "tail", "-n", "0")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "KEY_REVOKED")
	require.Equal(t, decisionOf(1, "ada", true)+"\n", stdout)

	s := &shell{t: t, env: map[string]string{"WEIR_URL": "http://127.0.0.1:1", "WEIR_KEY": "weir_key"}}
	_, _, code = s.run("", "tail")
	require.Equal(t, 1, code, "a wrong address is reported at once")
}

// A line fits the terminal, and a subject cannot control it.
func TestTailLines(t *testing.T) {
	wait, limit, remaining := int64(1250), int64(10), int64(0)
	d := liveDecision{At: time.Date(2026, 11, 20, 12, 0, 1, 5e6, time.UTC), Subject: "user\x1b[2J", Resource: "orders:create", Cost: 5,
		Rule: "api", Limit: &limit, Remaining: &remaining, RetryAfterMS: &wait, Repeats: 3}
	const full = "12:00:01.005 DENY  user\ufffd[2J  orders:create  cost 5  api 0/10 left  retry in 1.25s  and 3 more"
	require.Equal(t, full, d.line(0, false))
	require.Equal(t, "12:00:01.005 \x1b[31mDENY \x1b[0m"+full[18:], d.line(200, true))
	narrow := d.line(40, false)
	require.Equal(t, "12:00:01 DENY  user\ufffd[2J  orders:create …", narrow)
	require.Len(t, []rune(narrow), 40)
	d.Allowed, d.Rule, d.Repeats, d.RetryAfterMS, d.Cost = true, "", 0, nil, 1
	require.Equal(t, "12:00:01.005 allow user\ufffd[2J  orders:create", d.line(0, true))
}
