package h2

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// A client that sends frames which only cost loses its connection.
func TestFloods(t *testing.T) {
	_, addr := serveFor(t, nil)
	for name, send := range map[string]func(c *client, i int) error{
		"settings":         func(c *client, _ int) error { return c.WriteSettings() },
		"acknowledgements": func(c *client, _ int) error { return c.WriteSettingsAck() },
		"pings":            func(c *client, i int) error { return c.WritePing(false, [8]byte{byte(i)}) },
		"pongs":            func(c *client, i int) error { return c.WritePing(true, [8]byte{byte(i)}) },
		"priorities":       func(c *client, i int) error { return c.WritePriority(uint32(2*i+1), http2.PriorityParam{Weight: 1}) },
		"unknown frames":   func(c *client, _ int) error { return c.WriteRawFrame(0x42, 0, 0, nil) },
		"windows":          func(c *client, _ int) error { return c.WriteWindowUpdate(0, 1) },
		"goaways":          func(c *client, _ int) error { return c.WriteGoAway(0, http2.ErrCodeNo, nil) },
		"empty data": func(c *client, i int) error {
			if i == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head(callPath), EndHeaders: true})
			}
			return c.WriteData(1, false, nil)
		},
		"data after the end": func(c *client, i int) error {
			if i == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head(callPath), EndHeaders: true, EndStream: true})
			}
			return c.WriteData(1, false, nil)
		},
		"streams that are reset": func(c *client, i int) error {
			id := uint32(2*i + 1)
			return errors.Join(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.head(callPath), EndHeaders: true}),
				c.WriteRSTStream(id, http2.ErrCodeCancel))
		},
		"malformed requests": func(c *client, i int) error {
			block := c.head(callPath, "Upper", "x")
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block, EndHeaders: true, EndStream: true})
		},
		"requests without end": func(c *client, i int) error {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: c.head(callPath), EndHeaders: true})
		},
		"continuations": func(c *client, i int) error {
			if i == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head(callPath)})
			}
			return c.WriteContinuation(1, false, nil)
		},
		"a large header list": func(c *client, i int) error {
			if i == 0 {
				return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head(callPath)})
			}
			return c.WriteContinuation(1, false, c.encode([][2]string{{"a", long(15 << 10)}}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			c.flood(100_000, func(i int) error { return send(c, i) })
			dial(t, addr).works(1)
		})
	}
}

// A list of many fields of the table is not decoded to its end, however short its bytes are.
func TestShortFieldsOfALongList(t *testing.T) {
	_, addr := serveFor(t, nil)
	c := dial(t, addr)
	c.works(1)
	block := append(c.head(callPath), c.encode([][2]string{{"a", long(100)}})...)
	last := c.encode([][2]string{{"a", long(100)}}) // one byte: its index in the table
	require.Len(t, last, 1)
	block = append(block, bytes.Repeat(last, 15_000)...)
	c.headers(3, true, block)
	c.ended(http2.ErrCodeEnhanceYourCalm)
}

// Short frames of bodies count as parts, and a connection with very many waits. Answers that are
// ready do not wait for that.
func TestShortFramesOfBodies(t *testing.T) {
	waits, wait := make(chan int), make(chan struct{})
	_, addr := serveFor(t, func(config *Config) {
		config.Parts = func(_ netip.Addr, parts int) {
			waits <- parts
			<-wait
		}
	})
	c := dial(t, addr)
	c.open(1, callPath, false)
	for range 20 {
		c.data(1, false, long(2000))
	}
	c.data(1, true, "")
	require.Len(t, c.answer(1).body, 40_000)
	c.open(3, callPath, true)
	c.open(5, callPath, false)
	for range partsTogether + 3 {
		c.data(5, false, "x")
	}
	c.data(5, true, "x")
	require.InDelta(t, partsTogether, <-waits, 1)
	c.answer(3)
	close(wait)
	require.Len(t, c.answer(5).body, partsTogether+4)
}

// A long header list counts as many parts, also of a stream that is refused.
func TestLongListsCountAsParts(t *testing.T) {
	counted := make(chan int, 1)
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.Streams = 1
		config.Parts = func(_ netip.Addr, parts int) { counted <- parts }
	})
	c := dial(t, addr)
	c.works(1)
	c.open(3, callPath, false)
	for id := uint32(5); id < 13; id += 2 {
		c.open(id, callPath, true, "a", long(10<<10))
	}
	require.InDelta(t, 4*17, <-counted, 4)
}

// The frames of a client that sends requests are not a flood.
func TestBudgetsGrowWithAnswers(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.Frames, config.Limits.Resets = Budget{Burst: 30, PerAnswer: 5}, Budget{Burst: 5, PerAnswer: 1}
	})
	c := dial(t, addr)
	for id := uint32(1); id < 400; id += 4 {
		c.works(id) // updates two windows
		c.open(id+2, callPath, false)
		require.NoError(t, c.WriteRSTStream(id+2, http2.ErrCodeCancel))
		require.NoError(t, c.WritePing(false, [8]byte{}))
	}
}

func TestBudget(t *testing.T) {
	now := time.Unix(1000, 0)
	clock := func() time.Time { return now }
	b := Budget{Burst: 3, PerSecond: 10, PerAnswer: 2}.full(now)
	take := func(n int) (taken int) {
		for range n {
			if b.take(clock) {
				taken++
			}
		}
		return taken
	}
	require.Equal(t, 3, take(5))
	b.earn(b.PerAnswer)
	require.Equal(t, 2, take(5))
	now = now.Add(50 * time.Millisecond)
	require.Equal(t, 0, take(5))
	now = now.Add(50 * time.Millisecond)
	require.Equal(t, 1, take(5))
	now = now.Add(time.Hour)
	require.Equal(t, 3, take(5), "never more than the burst")
}

// A stream that was reset takes its place until nobody works for it any more. Otherwise a client
// could start any number of calls.
func TestStreamsAreBounded(t *testing.T) {
	begun, release := make(chan struct{}, 10), make(chan struct{})
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.Streams = 2
		config.Call = func(s *Call) bool {
			begun <- struct{}{}
			<-release
			return echo(s)
		}
	})
	c := dial(t, addr)
	for id := uint32(1); id <= 3; id += 2 {
		c.open(id, callPath, true)
		<-begun
		require.NoError(t, c.WriteRSTStream(id, http2.ErrCodeCancel))
	}
	c.open(5, callPath, false)
	require.Equal(t, http2.ErrCodeRefusedStream, c.answer(5).reset)
	c.data(5, true, "sent before the client knew")
	close(release)
	// The two calls end soon, but the client cannot know when.
	for id := uint32(7); ; id += 2 {
		c.open(id, callPath, true)
		if r := c.answer(id); r.reset != http2.ErrCodeRefusedStream {
			require.Equal(t, "0", r.trailer["grpc-status"])
			return
		}
	}
}

// A client that accepts a few bytes at a time gets them, in the order of its windows.
func TestTinyWindows(t *testing.T) {
	_, addr := serveFor(t, nil)
	for _, path := range []string{callPath, handlerPath} {
		c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
		c.open(1, path, false)
		c.data(1, true, "hello, world")
		next := func() *http2.DataFrame {
			return c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData }).(*http2.DataFrame)
		}
		require.Equal(t, "hel", string(next().Data()))
		require.NoError(t, c.WriteWindowUpdate(1, 1))
		require.Equal(t, "l", string(next().Data()))
		// The window becomes negative, and then has space for two bytes.
		require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
		require.NoError(t, c.WriteWindowUpdate(1, 5))
		require.Equal(t, "o,", string(next().Data()))
		require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 100}))
		r := c.answer(1)
		require.Equal(t, " world", r.body)
		require.NotEmpty(t, r.trailer)
		require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535}))
		c.works(3)
	}
}

// A client that opens no window, or never reads, cannot keep answers for long.
func TestUnreadAnswers(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.Write = time.Second
		config.Limits.Ping = 20 * time.Millisecond
	})
	for _, path := range []string{callPath, handlerPath} {
		c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		c.open(1, path, false)
		c.data(1, true, "hello")
		for alive := true; alive; { // it answers pings, so it is there
			frame, err := c.ReadFrame()
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
			if alive = err == nil; alive {
				if ping, ok := frame.(*http2.PingFrame); ok {
					_ = c.WritePing(true, ping.Data)
				}
			}
		}
	}
	c := dial(t, addr)
	require.NoError(t, c.Conn.(*net.TCPConn).SetReadBuffer(1<<10))
	require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 30}))
	require.NoError(t, c.WriteWindowUpdate(0, 1<<30))
	body := long(60 << 10)
	var err error
	for id := uint32(1); err == nil; id += 2 {
		err = errors.Join(c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.head(callPath), EndHeaders: true}))
		for rest := body; rest != "" && err == nil; rest = rest[min(len(rest), maxFrame):] {
			err = c.WriteData(id, len(rest) <= maxFrame, []byte(rest[:min(len(rest), maxFrame)]))
		}
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// A body that does not arrive ends its call only.
func TestSlowBody(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) { config.Limits.Body = 500 * time.Millisecond })
	c := dial(t, addr)
	c.open(1, callPath, false)
	c.data(1, false, "a part")
	require.Equal(t, "4", c.answer(1).trailer["grpc-status"])
	require.NoError(t, c.WritePing(false, [8]byte{1}))
	c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
}

// A client that begins something and stops loses its connection.
func TestHalfFrames(t *testing.T) {
	// The limit is longer than a busy machine may take from a connection to its first bytes. All
	// clients wait for it at the same time.
	_, addr := serveFor(t, func(config *Config) { config.Limits.Head = 3 * time.Second })
	stopped := []*client{dialSilently(t, addr)}
	c := dialSilently(t, addr)
	_, err := io.WriteString(c, http2.ClientPreface[:10])
	require.NoError(t, err)
	stopped = append(stopped, c)
	c = dialSilently(t, addr)
	_, err = io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	stopped = append(stopped, c)
	c = dial(t, addr)
	require.NoError(t, c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.head(callPath)}))
	stopped = append(stopped, c)
	c = dial(t, addr)
	_, err = c.Write([]byte{0, 1, 0, 0, 0, 0, 0, 0, 1, 'x'}) // data of 256 bytes
	require.NoError(t, err)
	for i, c := range append(stopped, c) {
		_, err := io.Copy(io.Discard, c)
		require.NoError(t, err, "client %d", i)
	}
	c = dialSilently(t, addr)
	_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: long enough\r\n\r\n")
	require.NoError(t, err)
	c.ended(http2.ErrCodeProtocol)
}

// Silent clients get a ping, and those that do not answer are disconnected. So are idle ones.
func TestSilence(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.Ping, config.Limits.Pong = 10*time.Millisecond, 3*time.Second // as long as a busy machine may need for an answer
	})
	c := dial(t, addr)
	for range 3 {
		ping := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
		require.NoError(t, c.WritePing(true, ping.(*http2.PingFrame).Data))
	}
	_, err := io.Copy(io.Discard, c)
	require.NoError(t, err, "disconnected after a ping without an answer")

	_, addr = serveFor(t, func(config *Config) { config.Limits.Ping, config.Limits.Idle = 2*time.Second, time.Second })
	c = dial(t, addr)
	goAway := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway })
	require.Equal(t, http2.ErrCodeNo, goAway.(*http2.GoAwayFrame).ErrCode)
}

// Clients may not ping more often than the limit, except after an answer.
func TestPingsTooOften(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) { config.Limits.LeastPing = time.Hour })
	c := dial(t, addr)
	for id := uint32(1); id < 10; id += 2 {
		require.NoError(t, c.WritePing(false, [8]byte{1}))
		require.NoError(t, c.WritePing(false, [8]byte{2}))
		c.works(id)
	}
	for range maxStrikes + 1 {
		require.NoError(t, c.WritePing(false, [8]byte{3}))
	}
	c.ended(http2.ErrCodeEnhanceYourCalm)
}

// A client that measures its bandwidth sends a ping for data, also during an answer. Before,
// a stream with four messages within ten seconds lost its connection.
func TestPingsDuringAnAnswer(t *testing.T) {
	next := make(chan struct{})
	_, addr := serveFor(t, func(config *Config) {
		config.Limits.LeastPing = time.Hour
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range next {
				_, _ = io.WriteString(w, "message")
				w.(http.Flusher).Flush()
			}
		})
	})
	defer close(next)
	c := dial(t, addr)
	c.open(1, handlerPath, true)
	for range 3 * maxStrikes {
		next <- struct{}{}
		c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameData })
		require.NoError(t, c.WritePing(false, [8]byte{1}))
		c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	}
}

// Frames that a stream or a connection must not get are answered as RFC 9113 says.
func TestProtocolErrors(t *testing.T) {
	_, addr := serveFor(t, nil)
	for name, fields := range map[string][]string{
		"no method": {":method", ""}, "no scheme": {":scheme", ""}, "no path": {":path", ""},
		"unknown pseudo-header": {":other", "x"}, "pseudo-header of a response": {":status", "200"}, "late pseudo-header": {":protocol", "x"},
		"upper case": {"Name", "x"}, "space in a name": {"na me", "x"}, "line break": {"name", "a\r\nb"}, "zero": {"name", "a\x00"},
		"connection": {"connection", "close"}, "te": {"te", "gzip"}, "transfer-encoding": {"transfer-encoding", "chunked"},
		"no length": {"content-length", "x"}, "negative length": {"content-length", "-1"}, "length without a body": {"content-length", "3"},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			c.open(1, callPath, true, fields...)
			c.refused(1, http2.ErrCodeProtocol)
		})
	}
	type step = func(c *client)
	begin := func(c *client) { c.open(1, callPath, false, "content-length", "5") }
	for name, s := range map[string]struct {
		do   step
		code http2.ErrCode
	}{
		"body longer than declared":  {func(c *client) { begin(c); c.data(1, false, "longer") }, http2.ErrCodeProtocol},
		"body shorter than declared": {func(c *client) { begin(c); c.data(1, true, "shor") }, http2.ErrCodeProtocol},
		"trailer without an end":     {func(c *client) { begin(c); c.headers(1, false, c.encode([][2]string{{"a", "b"}})) }, http2.ErrCodeProtocol},
		"pseudo-header in a trailer": {func(c *client) { begin(c); c.headers(1, true, c.encode([][2]string{{":path", "/"}})) }, http2.ErrCodeProtocol},
		"trailer of a short body":    {func(c *client) { begin(c); c.headers(1, true, c.encode([][2]string{{"a", "b"}})) }, http2.ErrCodeProtocol},
		"window of 0":                {func(c *client) { begin(c); _ = c.WriteWindowUpdate(1, 0) }, http2.ErrCodeProtocol},
		"window too large":           {func(c *client) { begin(c); _ = c.WriteWindowUpdate(1, 1<<31-1) }, http2.ErrCodeFlowControl},
		"stream depends on itself":   {func(c *client) { begin(c); _ = c.WritePriority(1, http2.PriorityParam{StreamDep: 1}) }, http2.ErrCodeProtocol},
		"two different lengths": {func(c *client) {
			c.headers(1, true, append(c.head(callPath, "content-length", "0"), c.encode([][2]string{{"content-length", "1"}})...))
		}, http2.ErrCodeProtocol},
		"two paths": {func(c *client) {
			c.headers(1, true, append(c.encode([][2]string{{":path", "/"}}), c.head(callPath)...))
		}, http2.ErrCodeProtocol},
		"pseudo-header after a field": {func(c *client) { c.headers(1, true, append(c.encode([][2]string{{"a", "b"}}), c.head(callPath)...)) }, http2.ErrCodeProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			s.do(c)
			c.refused(1, s.code)
		})
	}
	for name, s := range map[string]struct {
		do   step
		code http2.ErrCode
	}{
		"even stream":         {func(c *client) { c.open(2, callPath, true) }, http2.ErrCodeProtocol},
		"older stream":        {func(c *client) { c.open(5, callPath, true); c.open(3, callPath, true) }, http2.ErrCodeProtocol},
		"stream 0":            {func(c *client) { c.open(0, callPath, true) }, http2.ErrCodeProtocol},
		"data of no stream":   {func(c *client) { c.data(1, true, "x") }, http2.ErrCodeProtocol},
		"reset of no stream":  {func(c *client) { _ = c.WriteRSTStream(1, http2.ErrCodeCancel) }, http2.ErrCodeProtocol},
		"window of no stream": {func(c *client) { _ = c.WriteWindowUpdate(1, 1) }, http2.ErrCodeProtocol},
		"promise": {func(c *client) {
			_ = c.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, http2.ErrCodeProtocol},
		"headers in a block": {func(c *client) { _ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1}); c.open(3, callPath, true) }, http2.ErrCodeProtocol},
		"compression":        {func(c *client) { c.headers(1, true, []byte{0xff, 0xff, 0xff, 0xff, 0xff}) }, http2.ErrCodeCompression},
		"unfinished block":   {func(c *client) { c.headers(1, true, []byte{0x40, 0x05, 'a'}) }, http2.ErrCodeCompression},
		"frame too large":    {func(c *client) { _ = c.WriteRawFrame(0x42, 0, 0, make([]byte, maxFrame+1)) }, http2.ErrCodeFrameSize},
		"window too large":   {func(c *client) { _ = c.WriteWindowUpdate(0, 1<<31-1) }, http2.ErrCodeFlowControl},
		"initial window":     {func(c *client) { _ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1 << 31}) }, http2.ErrCodeFlowControl},
		"push":               {func(c *client) { _ = c.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 2}) }, http2.ErrCodeProtocol},
		"frame size":         {func(c *client) { _ = c.WriteSettings(http2.Setting{ID: http2.SettingMaxFrameSize, Val: 1}) }, http2.ErrCodeProtocol},
		"many settings":      {func(c *client) { _ = c.WriteSettings(make([]http2.Setting, maxSettings+1)...) }, http2.ErrCodeEnhanceYourCalm},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, addr)
			s.do(c)
			c.ended(s.code)
		})
	}
}

// A client that sends more than the window of a stream, while nobody reads it, loses the stream.
func TestMoreThanTheWindow(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	})
	c := dial(t, addr)
	c.open(1, handlerPath, false)
	for range 5 {
		c.data(1, false, long(16<<10))
	}
	c.refused(1, http2.ErrCodeFlowControl)
}

// Header lists are bounded, and the next one is read correctly.
func TestHeaderListTooLarge(t *testing.T) {
	_, addr := serveFor(t, nil)
	c := dial(t, addr)
	c.open(1, callPath, true, "a", long(9<<10), "b", long(7<<10))
	c.refused(1, http2.ErrCodeFrameSize)
}

// A handler hears that its client has left.
func TestCancelledHandler(t *testing.T) {
	heard := make(chan error, 1)
	_, addr := serveFor(t, func(config *Config) {
		config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			_, err := r.Body.Read(make([]byte, 1))
			heard <- err
		})
	})
	c := dial(t, addr)
	c.open(1, handlerPath, false)
	require.NoError(t, c.WriteRSTStream(1, http2.ErrCodeCancel))
	require.ErrorIs(t, <-heard, context.Canceled)
	c.works(3)
	c.open(5, handlerPath, false)
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-heard, context.Canceled)
}

// Calls in progress, and those that a client sends before it knows, are answered before the server
// stops.
func TestShutdown(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	server, addr := serveFor(t, func(config *Config) {
		config.Call = func(s *Call) bool {
			begun <- struct{}{}
			<-release
			return echo(s)
		}
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
	})
	c := dial(t, addr)
	c.open(1, handlerPath, false)
	c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameHeaders })
	c.open(3, callPath, true)
	<-begun
	silent := dialSilently(t, addr)
	_, err := silent.ReadFrame() // the server has accepted it
	require.NoError(t, err)
	stopped := make(chan error, 1)
	go func() { stopped <- server.Shutdown(t.Context()) }()
	goAway := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway }).(*http2.GoAwayFrame)
	require.EqualValues(t, 1<<31-1, goAway.LastStreamID)
	c.open(5, callPath, true)
	<-begun
	require.NoError(t, c.WritePing(true, drainPing))
	goAway = c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameGoAway }).(*http2.GoAwayFrame)
	require.EqualValues(t, 5, goAway.LastStreamID)
	c.open(7, callPath, false) // too late, and ignored
	c.data(7, true, "x")
	close(release)
	answers := c.answers(3)
	require.Equal(t, "0", answers[3].trailer["grpc-status"])
	require.Equal(t, "0", answers[5].trailer["grpc-status"])
	require.Equal(t, http2.ErrCodeCancel, answers[1].reset, "a handler that waits for nothing in particular")
	_, err = c.ReadFrame()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, c.Close())
	require.NoError(t, <-stopped)
	_, err = io.Copy(io.Discard, silent)
	require.NoError(t, err)
	_, err = net.Dial("tcp", addr)
	require.Error(t, err)
}

// If a call does not end, Shutdown does.
func TestShutdownInTime(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	server, addr := serveFor(t, func(config *Config) {
		config.Call = func(*Call) bool {
			close(begun)
			<-release
			return true
		}
	})
	defer close(release)
	c := dial(t, addr)
	c.open(1, callPath, true)
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, server.Shutdown(ctx), context.Canceled)
	require.NoError(t, server.Serve(nowhere{}), "it accepts no more listeners")
}

type nowhere struct{ net.Listener }

func (nowhere) Close() error { return nil }

// No sequence of bytes makes the server panic.
func FuzzConnection(f *testing.F) {
	c := &client{}
	var b strings.Builder
	c.Framer = http2.NewFramer(&b, nil)
	c.AllowIllegalWrites = true
	_ = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1})
	_ = c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x83, 0x86, 0x84, 0x04, 0x05, '/', 'c', 'a', 'l', 'l'}, EndHeaders: true})
	_ = c.WriteData(1, true, []byte("hello"))
	_ = c.WriteWindowUpdate(1, 10)
	_ = c.WriteRSTStream(1, http2.ErrCodeCancel)
	_ = c.WritePing(false, [8]byte{})
	f.Add([]byte(b.String()))
	f.Fuzz(func(t *testing.T, frames []byte) {
		server := New(Config{
			Limits: testLimits(), Direct: func(h *Head) bool { return h.Path == callPath }, Call: echo, Handler: http.HandlerFunc(echoHandler),
			Panicked: func(fault any) {
				if fault != http.ErrAbortHandler {
					t.Errorf("panic: %v", fault)
				}
			},
		})
		here, there := net.Pipe()
		go func() {
			_, _ = io.WriteString(here, http2.ClientPreface)
			_, _ = here.Write(frames)
			_ = here.Close()
		}()
		go func() { _, _ = io.Copy(io.Discard, here) }()
		server.serve(there)
	})
}
