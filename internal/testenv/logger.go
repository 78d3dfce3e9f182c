package testenv

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Logger returns a logger whose warnings and errors are shown if the test fails: an answer says
// that the database did not answer, and only the log says why.
func Logger(tb testing.TB) *slog.Logger {
	tb.Helper()
	var lines logged
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log("logged:\n" + lines.String())
		}
	})
	return slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
}

// logged are the lines of a log, of any number of goroutines.
type logged struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (l *logged) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.Write(line)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines.String()
}
