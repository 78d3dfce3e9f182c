package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/require"
)

// usageServer answers usage: ada has checks in two minutes, and bob is denied most.
func usageServer(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.URL.Path != "/v1/usage" || query.Get("grain") != "minute" || query.Get("from") == "" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		switch query.Get("group_by") + query.Get("top") {
		case "":
			fmt.Fprint(w, `{"items":[{"allowed":700,"denied":0},{"allowed":200,"denied":100}]}`)
		case "subjectchecks":
			fmt.Fprint(w, `{"items":[{"subject":"bob","allowed":5,"denied":90},{"subject":"ada","allowed":300,"denied":0},{"subject":"ada","allowed":400,"denied":10}]}`)
		case "subjectdenied":
			fmt.Fprint(w, `{"items":[{"subject":"ada","allowed":0,"denied":10},{"subject":"bob","allowed":0,"denied":90}]}`)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

func TestTopOnce(t *testing.T) {
	s := &shell{t: t, env: map[string]string{"WEIR_URL": usageServer(t).URL, "WEIR_KEY": "weir_key"}}
	stdout, stderr, code := s.run("", "top", "--once")
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "last 5 min: 1000 checks, 100 denied (10.0 %)")
	require.Regexp(t, `(?s)BUSIEST +CHECKS +DENIED\nada +710 +10 █+\nbob +95 +90 █+\n\nMOST DENIED +DENIED\nbob +90 █+\nada +10`, stdout)
	require.NotContains(t, stdout, "\x1b")

	var got topData
	stdout, _, _ = s.run("", "-o", "json", "top", "-m", "60")
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	require.Equal(t, 60, got.Minutes)
	require.Equal(t, []topSubject{{"ada", 700, 10}, {"bob", 5, 90}}, got.Busiest)
	stdout, _, _ = s.run("", "-o", "csv", "top")
	require.Equal(t, "list,subject,allowed,denied\nbusiest,ada,700,10\nbusiest,bob,5,90\nmost_denied,bob,,90\nmost_denied,ada,,10\n", stdout)

	_, _, code = s.run("", "top", "-m", "61")
	require.Equal(t, 1, code)
	s.env["WEIR_URL"] = "http://127.0.0.1:1"
	_, _, code = s.run("", "top")
	require.Equal(t, 1, code)
}

// A frame fits every terminal, whatever the subjects are called.
func TestTopFrameFits(t *testing.T) {
	d := &topData{At: time.Unix(0, 0).UTC(), Minutes: 5, Allowed: 1e15, Denied: 1e15}
	for i := range topSubjects {
		d.Busiest = append(d.Busiest, topSubject{strings.Repeat("é\x1b", 128), 1e15, int64(i)})
		d.MostDenied = append(d.MostDenied, topSubject{strings.Repeat("b", 256), 0, int64(1000 - i)})
	}
	for _, size := range [][2]int{{20, 10}, {40, 24}, {80, 25}, {99, 50}, {100, 24}, {250, 80}} {
		f := topFrame{data: d, server: "https://weir.example.com", width: size[0], height: size[1], failure: "connection refused"}
		text := f.render()
		lines := strings.Split(text, "\n")
		require.LessOrEqual(t, len(lines), size[1], size)
		for _, line := range lines {
			require.LessOrEqual(t, len([]rune(line)), max(size[0], 26), "%v %q", size, line)
		}
		require.NotContains(t, text, "\x1b")
		require.Contains(t, text, "MOST DENIED")
	}
	empty := topFrame{data: &topData{}, width: 80, height: 24}
	require.Equal(t, 2, strings.Count(empty.render(), "none"))
}

// lockedOutput can be read while a program writes to it.
type lockedOutput struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedOutput) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedOutput) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// In a terminal, the frame is shown until a key ends it.
func TestTopInTerminal(t *testing.T) {
	in, keys := io.Pipe()
	out := &lockedOutput{}
	env := map[string]string{"WEIR_URL": usageServer(t).URL, "WEIR_KEY": "weir_key"}
	shown := &terminal{in: in, out: out, err: io.Discard, getenv: func(name string) string { return env[name] }, columns: func() int { return 80 }}
	ended := make(chan int, 1)
	go func() { ended <- run(t.Context(), shown, []string{"top"}) }()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "MOST DENIED") }, time.Minute, 10*time.Millisecond)
	_, err := keys.Write([]byte("q"))
	require.NoError(t, err)
	select {
	case code := <-ended:
		require.Zero(t, code)
	case <-time.After(time.Minute):
		t.Fatal("q did not end it")
	}
}

// An update that fails keeps the last numbers and says why; the next one clears it. A pause keeps
// them, too.
func TestTopUpdates(t *testing.T) {
	first, second := &topData{Allowed: 1}, &topData{Allowed: 2}
	m := &topModel{frame: topFrame{data: first, width: 80, height: 24}, load: func() (*topData, error) { return second, nil }}
	update := func(message tea.Msg) tea.Cmd {
		_, next := m.Update(message)
		return next
	}
	require.NotNil(t, update(topLoaded{err: errors.New("status 503\n  details")}))
	require.Equal(t, "status 503", m.frame.failure)
	require.Contains(t, m.View().Content, "cannot update: status 503")
	require.Same(t, first, m.frame.data)

	update(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	require.True(t, m.paused)
	require.Contains(t, m.View().Content, "paused")
	update(tea.KeyPressMsg{Code: tea.KeySpace, Text: " "})
	load := update(topTick{})
	require.NotNil(t, load)
	require.NotNil(t, update(load()))
	require.Same(t, second, m.frame.data)
	require.Empty(t, m.frame.failure)

	update(tea.WindowSizeMsg{Width: 30, Height: 12})
	content := m.View().Content
	require.Equal(t, 11, strings.Count(content, "\n"))
	require.Equal(t, tea.Quit(), update(tea.KeyPressMsg{Code: 'q', Text: "q"})())
}
