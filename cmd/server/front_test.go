package main

import (
	"bytes"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

type lockedLog struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// A client that never reads its answer does not make an orderly end a failure: the process would
// exit with 1, and its supervisor would report a crash.
func TestDrainInterruptsClientsThatNeverRead(t *testing.T) {
	t.Parallel()
	log := &lockedLog{}
	f, err := openFront(&Config{HTTPAddr: "127.0.0.1:0", HTTPSAddr: "off", GRPCAddr: "off", InternalAddr: "off"}, slog.New(slog.NewTextHandler(log, nil)), prometheus.NewRegistry())
	require.NoError(t, err)
	f.patience = 100 * time.Millisecond
	inside := make(chan struct{})
	gone := make(chan struct{})
	f.handle(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(gone)
		close(inside)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
		for page := make([]byte, 1<<20); ; {
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	}))
	f.start(t.Context())
	c, err := net.Dial("tcp", f.public[0].listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(c, "GET /large HTTP/1.1\r\nHost: weir\r\n\r\n")
	require.NoError(t, err)
	<-inside
	require.NoError(t, f.drain(time.Nanosecond))
	log.mu.Lock()
	require.Contains(t, log.b.String(), "requests to WEIR_HTTP_ADDR")
	require.Contains(t, log.b.String(), "level=WARN")
	log.mu.Unlock()
	require.NoError(t, c.Close())
	<-gone
}
