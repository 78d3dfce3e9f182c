package h2

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"weir/internal/origin"
)

// A network has a share of the requests that the handler answers. Further ones are refused, so that
// their clients send them again, and direct calls are answered.
func TestHandlersAreBounded(t *testing.T) {
	begun, leave := make(chan struct{}), make(chan struct{})
	server, addr := serveFor(t, func(config *Config) {
		config.Limits.Handlers, config.Limits.HandlersOf = 3, 2
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begun <- struct{}{}
			<-leave
			w.WriteHeader(http.StatusNoContent)
		})
	})
	c := dial(t, addr)
	for _, id := range []uint32{1, 3} {
		c.open(id, handlerPath, true)
		<-begun
	}
	c.open(5, handlerPath, true)
	require.Equal(t, http2.ErrCodeRefusedStream, c.answers(1)[5].reset)
	c.open(7, callPath, true)
	require.Equal(t, "200", c.answers(1)[7].head[":status"])
	_, ok := server.handlers.TakeShare(origin.Within(netip.MustParseAddr("192.0.2.1")), 3, 2)
	require.True(t, ok, "another network has a place")
	close(leave)
	require.Len(t, c.answers(2), 2)
	c.open(9, handlerPath, true)
	<-begun
	require.Equal(t, "204", c.answers(1)[9].head[":status"], "places are free again")
}

// Many short fields take much more memory than their bytes, so their number is limited, too.
func TestManyFields(t *testing.T) {
	_, addr := serveFor(t, nil)
	c := dial(t, addr)
	fields := []string{"content-type", "application/grpc"} // the first field
	for n := range maxFields - 1 {
		fields = append(fields, fmt.Sprint("x", n), "1")
	}
	c.open(1, callPath, true, fields...)
	require.Equal(t, "200", c.answers(1)[1].head[":status"])
	c.open(3, callPath, true, append(fields, "y", "1")...)
	require.Equal(t, http2.ErrCodeFrameSize, c.answers(1)[3].reset)
}

// only returns the only connection of a server.
func (s *Server) only(t *testing.T) (c *conn) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.Len(t, s.conns, 1)
	for c = range s.conns {
	}
	return c
}

// addr returns the address of the only listener of a server.
func (s *Server) addr() (addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for listener := range s.listeners {
		addr = listener.Addr().String()
	}
	return addr
}

// with calls f with the lock of a connection.
func (c *conn) with(f func() bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return f()
}

// An answer that is not read keeps neither its request nor a place of the handler. Before, a
// connection kept 100 MB of requests over gRPC, and 10 000 short answers of one network a goroutine
// each.
func TestUnreadAnswersKeepLittle(t *testing.T) {
	server, addr := serveFor(t, func(config *Config) {
		config.Limits.Handlers, config.Limits.HandlersOf = 1, 1
		config.Call = func(s *Call) bool {
			_, err := s.Body(50_000, time.Time{})
			s.Answer([]byte("short"))
			return err == nil
		}
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Sum")
			_, _ = io.WriteString(w, "short")
			w.Header().Set("Sum", "5")
		})
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	conn := server.only(t)
	c.open(1, callPath, false, "long", strings.Repeat("x", 10_000))
	for range 5 {
		c.data(1, false, strings.Repeat("x", 10_000))
	}
	stuck := func(n int) {
		require.Eventually(t, func() bool { return conn.with(func() bool { return len(conn.stuck) == n }) }, patient, time.Millisecond)
	}
	stuck(1)
	c.data(1, true, "more") // which nobody reads
	for i := range 5 {
		c.open(uint32(3+2*i), handlerPath, true)
		stuck(2 + i)
	}
	conn.with(func() bool {
		for _, s := range conn.stuck {
			require.Equal(t, "short", string(s.rest))
			require.Empty(t, s.body)
			require.Empty(t, s.head.Fields)
		}
		return true
	})
	require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
	for id, r := range c.answers(6) {
		require.Equal(t, "short", r.body)
		if id > 1 {
			require.Equal(t, "5", r.trailer["sum"])
		} else {
			require.Equal(t, "0", r.trailer["grpc-status"])
		}
	}
}

// A client that is silent and does not read an answer loses its connection in time. Before, this
// took until it should have answered a ping.
func TestUnreadAnswersEnd(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) { config.Limits.Write = 50 * time.Millisecond })
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.open(1, callPath, false)
	c.data(1, true, "body")
	c.ended(http2.ErrCodeEnhanceYourCalm)
}

// A connection without streams does not keep the goroutines and the memory of its last ones, and
// ends, although its client sends frames that open none.
func TestIdleConnectionsRest(t *testing.T) {
	server, addr := serveFor(t, nil)
	c := dial(t, addr)
	for i := range 10 {
		c.open(uint32(2*i+1), callPath, false)
	}
	for i := range 10 {
		c.data(uint32(2*i+1), true, "body")
	}
	require.Len(t, c.answers(10), 10)
	conn := server.only(t)
	after := func(idle time.Duration, rests func() bool) {
		require.Eventually(t, func() bool {
			conn.with(func() bool {
				if !conn.idleSince.IsZero() {
					conn.idleSince = time.Now().Add(-idle)
				}
				return true
			})
			require.NoError(t, c.WritePriority(1, http2.PriorityParam{StreamDep: 3}))
			return conn.with(rests)
		}, patient, 10*time.Millisecond)
	}
	after(2*restAfter, func() bool { return len(conn.idle)+len(conn.free) == 0 })
	after(2*conn.server.Limits.Idle, func() bool { return conn.draining != serving })
	c.open(21, callPath, true)
	require.Equal(t, "200", c.answers(1)[21].head[":status"], "streams that it opens before it knows are answered")
}
