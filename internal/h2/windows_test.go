package h2

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// A client that opens a window byte by byte loses its connection. Before, each frame of one byte
// gave it another frame.
func TestFloodOfTinyWindows(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Call = func(s *Call) bool {
			s.Answer([]byte(long(20_000)))
			return true
		}
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	c.open(1, callPath, true)
	c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameHeaders })
	// The answer lasts for longer than the frames that it may have.
	require.NoError(t, c.SetDeadline(time.Now().Add(patient/4)))
	c.flood(15_000, func(int) error { return c.WriteWindowUpdate(1, 1) })
}

// A client that updates both windows for every frame is no flood, also if its windows are small.
func TestSmallWindowsAreNoFlood(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.Frames = Budget{Burst: 20}
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(long(100 << 10)))
		})
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 10})
	c.open(1, handlerPath, true)
	require.Len(t, c.answer(1).body, 100<<10)
}

// A window update wakes as many handlers as it has space for. Before, a frame for one byte woke all
// of them.
func TestWindowsWakeFewHandlers(t *testing.T) {
	const waiting = 100
	server, addr := serveFor(t, func(config *Config) {
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			size := 5000
			if strings.HasSuffix(r.URL.Path, "fill") {
				size = initialWindow
			}
			_, _ = w.Write([]byte(long(size)))
		})
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 20})
	c.open(1, "/fill", true) // the window of the connection
	for got := 0; got < initialWindow; {
		c.until(func(f http2.Frame) bool {
			data, ok := f.(*http2.DataFrame)
			if ok {
				got += int(data.Length)
			}
			return ok
		})
	}
	conn := server.only(t)
	for i := range waiting {
		c.open(uint32(3+2*i), handlerPath, true)
	}
	require.Eventually(t, func() bool { return conn.with(func() bool { return len(conn.stuck) == waiting }) }, patient, time.Millisecond)
	woken := func() (n int) {
		for _, s := range conn.stuck {
			if s.windowWait.changed == nil {
				n++
			}
		}
		return n
	}
	var first uint32
	conn.with(func() bool {
		conn.resume()
		require.Zero(t, woken())
		conn.sendWindow++
		conn.resume()
		require.Equal(t, 1, woken())
		conn.resume()
		require.Equal(t, 1, woken(), "the space is used")
		first = conn.stuck[0].id
		conn.reset(conn.stuck[0], http2.ErrCodeCancel)
		return true
	})
	next := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData && f.Header().Length > 0 })
	require.EqualValues(t, 1, next.Header().Length, "the next handler uses what a cancelled one leaves")
	require.NotEqual(t, first, next.Header().StreamID)
	ended := 0
	require.NoError(t, c.WriteWindowUpdate(0, 1<<20))
	c.until(func(f http2.Frame) bool {
		if data, ok := f.(*http2.DataFrame); ok && data.StreamEnded() && data.StreamID != 1 {
			ended++
		}
		return ended == waiting-1
	})
}

// Of a setting that is several times in a frame, the last value counts. Each change looks at all
// streams, so the others are not applied.
func TestRepeatedSettings(t *testing.T) {
	_, addr := serveFor(t, nil)
	c := dial(t, addr)
	c.open(1, callPath, false)
	require.NoError(t, c.WriteWindowUpdate(1, 10))
	window := func(n uint32) http2.Setting { return http2.Setting{ID: http2.SettingInitialWindowSize, Val: n} }
	require.NoError(t, c.WriteSettings(window(maxWindow), window(0), window(initialWindow)))
	c.data(1, true, "hello")
	require.Equal(t, "hello", c.answer(1).body)
	require.NoError(t, c.WriteSettings(window(maxWindow+1), window(initialWindow)))
	c.ended(http2.ErrCodeFlowControl)
}

// A client that reads other answers keeps its connection, although a handler waits for the window
// of its own stream for long.
func TestUnreadHandlerLeavesOthers(t *testing.T) {
	server, addr := serveFor(t, func(config *Config) {
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(long(50_000)))
		})
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	conn := server.only(t)
	c.open(1, handlerPath, true)
	conn.until(t, func() bool { return len(conn.stuck) == 1 })
	conn.readEarlier()
	require.NoError(t, c.WriteWindowUpdate(0, 100)) // the client has read 100 bytes of other streams
	answers := func() {
		require.NoError(t, c.WritePing(false, [8]byte{1}))
		c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	}
	answers()
	conn.endUnread()
	answers()
}

// A client that reads nothing loses its connection, also if its streams end by their own deadlines.
// Before, each of them let the others wait for longer.
func TestResetsAreNotRead(t *testing.T) {
	server, addr := serveFor(t, func(config *Config) {
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(long(50_000)))
		})
	})
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	conn := server.only(t)
	c.open(1, handlerPath, true)
	c.open(3, handlerPath, true)
	conn.until(t, func() bool { return len(conn.stuck) == 2 })
	conn.readEarlier()
	conn.stickEarlier()
	conn.with(func() bool {
		conn.reset(conn.streams[1], http2.ErrCodeInternal)
		return true
	})
	conn.until(t, func() bool { return conn.open == 1 })
	conn.endUnread()
	c.ended(http2.ErrCodeEnhanceYourCalm)
}
