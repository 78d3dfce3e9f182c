package h2

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// stickEarlier makes all streams that wait for a window wait since an hour before.
func (c *conn) stickEarlier() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.stuck {
		s.stuckSince = s.stuckSince.Add(-time.Hour)
	}
}

// readEarlier makes an hour pass since the client has read anything.
func (c *conn) readEarlier() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readAt = c.readAt.Add(-time.Hour)
}

// An answer whose end is not read is reset in time, and the connection, which clients behind a
// proxy share, stays while the others are read. Before, it ended for all of them if the last piece
// of the answer was short.
func TestUnreadRestLeavesOthers(t *testing.T) {
	for _, path := range []string{callPath, handlerPath} {
		t.Run(path, func(t *testing.T) {
			server, addr := serveFor(t, func(config *Config) {
				config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = w.Write(make([]byte, 32<<10))
					_, _ = w.Write(make([]byte, 1000))
				})
			})
			c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 32 << 10})
			require.NoError(t, c.WriteWindowUpdate(0, 1<<20)) // so that the client opens it no more for long
			conn := server.only(t)
			c.open(1, path, false)
			for range 3 {
				c.data(1, false, strings.Repeat("x", 11_000))
			}
			c.data(1, true, "")
			conn.until(t, func() bool { return len(conn.stuck) == 1 && len(conn.stuck[0].rest) > 0 })
			for got := 0; got < 32<<10; {
				f := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
				got += int(f.Header().Length)
			}
			conn.readEarlier()
			conn.stickEarlier()
			c.open(3, callPath, false)
			c.data(3, true, "short")
			c.until(func(f http2.Frame) bool {
				return f.Header().StreamID == 3 && f.Header().Flags.Has(http2.FlagHeadersEndStream)
			})
			conn.endUnread()
			c.refused(1, http2.ErrCodeEnhanceYourCalm)
			conn.with(func() bool {
				require.Zero(t, conn.resting)
				require.Zero(t, conn.open)
				require.Empty(t, conn.stuck)
				return true
			})
			require.Zero(t, server.rests.Waiting())
		})
	}
}
