package h2

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// begins returns the status of an answer whose body nobody reads.
func (c *client) begins(id uint32) (status string) {
	c.t.Helper()
	c.until(func(f http2.Frame) bool {
		if f.Header().StreamID != id {
			return false
		}
		if reset, ok := f.(*http2.RSTStreamFrame); ok {
			status = "reset: " + reset.ErrCode.String()
			return true
		}
		for _, field := range c.fields {
			if field.Name == ":status" {
				status = field.Value
			}
		}
		return true
	})
	return status
}

// Clients that do not read their answers leave all places of the handler to others, also to those
// that have the same address behind a proxy. Before, 13 of 64 places were all that an address had,
// for as long as an answer may wait.
func TestUnreadAnswersLeaveNeighbours(t *testing.T) {
	server, addr := serveFor(t, func(config *Config) {
		config.Limits.Handlers, config.Limits.HandlersOf = 64, 1
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long(50_000)) })
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	for i := range uint32(40) {
		c.open(1+2*i, handlerPath, true)
		require.Equal(t, "200", c.begins(1+2*i))
		require.Eventually(t, func() bool { return server.handlers.Taken() == 0 }, patient, time.Millisecond)
	}
	other := dial(t, addr)
	other.open(1, handlerPath, true)
	require.Equal(t, "200", other.begins(1))
}

// byField counts a request for the address in its field "from".
func byField(_ netip.Addr, head *Head) netip.Addr {
	for _, f := range head.Fields {
		if f.Name == "from" {
			return netip.MustParseAddr(f.Value)
		}
	}
	return netip.Addr{}
}

// Unread answers are bounded in number. Beyond it, the network with the most loses the oldest one,
// and a new request is never refused.
func TestUnreadAnswersAreBounded(t *testing.T) {
	server, addr := serveFor(t, func(config *Config) {
		config.Limits.Handlers, config.Limits.HandlersOf, config.Limits.Unread = 1, 1, 4
		config.Client = byField
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long(50_000)) })
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	id := uint32(1)
	open := func(from string, waiting int) {
		c.open(id, handlerPath, true, "from", from)
		require.Equal(t, "200", c.begins(id))
		require.Eventually(t, func() bool { return server.unread.Waiting() == waiting && server.handlers.Taken() == 0 }, patient, time.Millisecond)
		id += 2
	}
	open("192.0.2.1", 1)
	for i := range 3 {
		open("198.51.100.7", 2+i)
	}
	require.NoError(t, c.WriteWindowUpdate(3, 10)) // so the second one is read, and the third is the oldest
	c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData && f.Header().StreamID == 3 })
	require.Eventually(t, func() bool { return server.unread.Waiting() == 4 }, patient, time.Millisecond)
	c.open(9, handlerPath, true, "from", "192.0.2.2")
	var lost *http2.RSTStreamFrame
	began := false
	c.until(func(f http2.Frame) bool {
		if reset, ok := f.(*http2.RSTStreamFrame); ok {
			lost = reset
		}
		began = began || f.Header().StreamID == 9 && f.Header().Type == http2.FrameHeaders
		return lost != nil && began
	})
	require.Equal(t, uint32(5), lost.StreamID)
	require.Equal(t, http2.ErrCodeEnhanceYourCalm, lost.ErrCode)
	require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 50_000}))
	for id, r := range c.answers(4) {
		want := 50_000
		if id == 3 {
			want -= 10
		}
		require.Len(t, r.body, want)
	}
	require.Eventually(t, func() bool { return server.unread.Waiting() == 0 }, patient, time.Millisecond)
}

// The same holds for a client whose windows are open, and that does not read its socket. Of two
// answers on a connection, one is being written, and the other waits for that.
func TestUnreadSocketsLeaveNeighbours(t *testing.T) {
	body := []byte(long(1 << 20))
	var returned atomic.Int64
	c, conn, _ := dialHeld(t, func(config *Config) {
		config.Limits.Handlers, config.Limits.HandlersOf, config.Limits.Unread = 1, 1, 2
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			defer returned.Add(1)
			_, _ = w.Write(body)
		})
	})
	server := conn.server
	unread := func(n int) {
		require.Eventually(t, func() bool { return server.unread.Waiting() == n && server.handlers.Taken() == 0 }, patient, time.Millisecond)
	}
	for i := range 2 {
		c.open(uint32(1+2*i), handlerPath, true)
		unread(1 + i)
	}
	require.Zero(t, returned.Load())
	other := dial(t, server.addr(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	other.open(1, handlerPath, true)
	require.Equal(t, "200", other.begins(1))
	unread(1)
	require.Eventually(t, func() bool { return returned.Load() == 2 }, patient, time.Millisecond)
}

// The size of the pieces in which a handler writes changes nothing. Before, an answer in pieces of
// less than 64 KB kept its place while the socket accepted no more.
func TestUnreadPiecesLeaveNeighbours(t *testing.T) {
	for _, size := range []int{2 << 10, 8 << 10, 60 << 10} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			c, conn, _ := dialHeld(t, func(config *Config) {
				config.Limits.Handlers, config.Limits.HandlersOf = 64, 1
				config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					for range 4 << 20 / size {
						if _, err := w.Write(make([]byte, size)); err != nil {
							return
						}
					}
				})
			})
			server := conn.server
			c.open(1, handlerPath, true)
			require.Eventually(t, func() bool { return server.unread.Waiting() == 1 && server.handlers.Taken() == 0 }, patient, time.Millisecond)
		})
	}
}

// However many answers of a connection nobody reads, its output is bounded: they wait before they
// are added. Before, each of them added a part first, 64 KB.
func TestUnreadOutputIsBounded(t *testing.T) {
	body := make([]byte, 4<<20)
	var begun sync.WaitGroup // the reader begins no request while the output is large
	begun.Add(100)
	server, addr := serveFor(t, func(config *Config) {
		config.Limits.Handlers, config.Limits.HandlersOf, config.Limits.Streams, config.Limits.Unread = 4096, 100, 100, 2048
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			begun.Done()
			begun.Wait()
			_, _ = w.Write(body)
		})
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	require.NoError(t, c.WriteWindowUpdate(0, maxWindow-initialWindow))
	var all bytes.Buffer
	framer := http2.NewFramer(&all, nil)
	for i := range uint32(100) {
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: c.head(handlerPath), EndHeaders: true, EndStream: true}))
	}
	_, err := c.Conn.Write(all.Bytes())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return server.unread.Waiting() >= 10 }, patient, time.Millisecond)
	server.mu.Lock()
	defer server.mu.Unlock()
	for c := range server.conns {
		c.mu.Lock()
		require.Less(t, len(c.out.b), 3*maxOutput)
		require.Less(t, cap(c.spare), 8*maxOutput)
		c.mu.Unlock()
	}
}
