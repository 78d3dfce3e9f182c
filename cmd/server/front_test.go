package main

import (
	"bytes"
	"context"
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
	f, err := openFront(&Config{HTTPAddr: "127.0.0.1:0", HTTPSAddr: "off", GRPCAddr: "off", InternalAddr: "off", MaxConnections: 100}, slog.New(slog.NewTextHandler(log, nil)), prometheus.NewRegistry())
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

// A client that opens more connections than there may be loses its own idle ones, and a health
// check over a new connection is answered. Before, the process ran out of files.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	config := &Config{HTTPAddr: "127.0.0.1:0", HTTPSAddr: "off", GRPCAddr: "off", InternalAddr: "off", MaxConnections: 10}
	f, err := openFront(config, slog.New(slog.DiscardHandler), registry)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.start(ctx)
	defer f.closeListeners()
	addr := f.public[0].listener.Addr().String()
	var idle []net.Conn
	for range 30 {
		conn, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer conn.Close()
		idle = append(idle, conn)
	}
	health, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, 1)}}).Dial("tcp", addr)
	require.NoError(t, err)
	defer health.Close()
	_, err = health.Write([]byte("GET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n"))
	require.NoError(t, err)
	answer := make([]byte, 15)
	_, err = io.ReadFull(health, answer)
	require.NoError(t, err)
	require.Equal(t, "HTTP/1.1 200 OK", string(answer))
	_, err = idle[0].Read(make([]byte, 1))
	require.Error(t, err, "the oldest one was closed")
	require.LessOrEqual(t, f.bound.Open(), 10)
}

// The bound leaves files for Postgres and Redis.
func TestConnectionsLeaveFiles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ most, files, want int }{{20_000, 0, 20_000}, {20_000, 1_000_000, 20_000}, {20_000, 1024, 768}, {100, 1024, 100}} {
		require.Equal(t, c.want, mostConnections(c.most, c.files))
	}
}
