package h2

import (
	"bytes"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// answering answers calls and requests to the handler with a body, after wait.
func answering(config *Config, body []byte, wait func()) {
	config.Call = func(s *Call) bool {
		wait()
		s.AnswerHTTP(AppendStatus(nil, 200), body)
		return true
	}
	config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		wait()
		_, _ = w.Write(body)
	})
}

// Answers that nobody works on any more are bounded, too, while their client does not read them.
// Beyond the bound, the network with the most loses its own. Before, an anonymous client kept 100
// of them on each connection, 5 KB each.
func TestRestsAreBounded(t *testing.T) {
	for _, path := range []string{callPath, handlerPath} {
		t.Run(path, func(t *testing.T) {
			server, addr := serveFor(t, func(config *Config) {
				config.Limits.Rest = 25 << 10 // 5 short answers
				config.Client = byField
				answering(config, make([]byte, maxHeld), func() {})
			})
			c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
			conn := server.only(t)
			wait := func(stuck int, last uint32) {
				require.Eventually(t, func() bool {
					return conn.with(func() bool { return len(conn.stuck) == stuck && conn.open == stuck && conn.lastID == last })
				}, patient, time.Millisecond)
			}
			c.open(1, path, true, "from", "192.0.2.1")
			wait(1, 1)
			for i := range uint32(10) {
				c.open(3+2*i, path, true, "from", "198.51.100.7")
			}
			wait(5, 21)
			require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxHeld}))
			lost := 0
			answers := c.answers(11)
			for _, r := range answers {
				if r.reset == http2.ErrCodeEnhanceYourCalm {
					lost++
				} else {
					require.Len(t, r.body, maxHeld)
				}
			}
			require.Equal(t, 6, lost)
			require.Len(t, answers[1].body, maxHeld, "the other network loses none")
			wait(0, 21)
			c.open(23, path, true, "from", "198.51.100.7")
			require.Len(t, c.answer(23).body, maxHeld, "what was read or lost counts no more")
		})
	}
}

// Long answers to direct calls are bounded for each connection, too. One alone is never too long.
func TestRestsOfAConnectionAreBounded(t *testing.T) {
	server, addr := serveFor(t, func(config *Config) { answering(config, make([]byte, maxRest*3/4), func() {}) })
	c := dial(t, addr, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	conn := server.only(t)
	for i := range 2 {
		c.open(uint32(1+4*i), callPath, true)
		require.Equal(t, "200", c.begins(uint32(1+4*i)))
		require.Eventually(t, func() bool { return conn.with(func() bool { return len(conn.stuck) == 1 }) }, patient, time.Millisecond)
		c.open(uint32(3+4*i), callPath, true)
		c.until(func(f http2.Frame) bool {
			reset, ok := f.(*http2.RSTStreamFrame)
			if ok {
				require.Equal(t, uint32(3+4*i), reset.StreamID)
				require.Equal(t, http2.ErrCodeEnhanceYourCalm, reset.ErrCode)
			}
			return ok
		})
		require.NoError(t, c.WriteRSTStream(uint32(1+4*i), http2.ErrCodeCancel))
		require.Eventually(t, func() bool { return conn.with(func() bool { return conn.open == 0 }) }, patient, time.Millisecond)
	}
}

// heldConn is a connection whose client reads nothing until release is called.
type heldConn struct {
	net.Conn
	held    chan struct{} // nil: nothing is held
	release func()
}

func (c *heldConn) Write(b []byte) (int, error) {
	if c.held != nil {
		<-c.held
	}
	return c.Conn.Write(b)
}

// Close makes a write fail that is in progress.
func (c *heldConn) Close() error {
	err := c.Conn.Close()
	c.release()
	return err
}

// dialHeld returns a client with open windows, and its connection, whose socket accepts nothing
// until release is called.
func dialHeld(t *testing.T, change func(*Config)) (c *client, conn *conn, release func()) {
	t.Helper()
	server, _ := serveFor(t, change)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	held := make(chan struct{})
	release = sync.OnceFunc(func() { close(held) })
	socket := &heldConn{release: release}
	var served sync.WaitGroup
	served.Go(func() {
		if socket.Conn, err = listener.Accept(); err == nil {
			server.ServeConn(socket, nil)
		}
	})
	t.Cleanup(served.Wait)
	t.Cleanup(func() { _ = listener.Close() })
	c = dial(t, listener.Addr().String(), http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
	require.NoError(t, c.WriteWindowUpdate(0, maxWindow-initialWindow))
	require.NoError(t, c.WritePing(false, [8]byte{1}))
	c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FramePing })
	conn = server.only(t)
	conn.with(func() bool {
		for conn.writing {
			conn.drained.Wait()
		}
		socket.held = held
		return true
	})
	t.Cleanup(release)
	return c, conn, release
}

// kept returns how much output waits for the socket. The caller holds the lock.
func (c *conn) kept() int {
	if c.writing {
		return len(c.out.b) + len(c.spare)
	}
	return len(c.out.b)
}

// Short answers wait before they are added to an output that is large, and are sent when the socket
// has accepted it. Before, each of them was added, and counted nowhere.
func TestRestsWaitForTheSocket(t *testing.T) {
	const streams = 100
	for _, path := range []string{callPath, handlerPath} {
		t.Run(path, func(t *testing.T) {
			var begun sync.WaitGroup
			begun.Add(streams)
			c, conn, release := dialHeld(t, func(config *Config) {
				answering(config, make([]byte, maxHeld), func() {
					begun.Done()
					begun.Wait()
				})
			})
			for i := range uint32(streams) {
				c.open(1+2*i, path, true)
			}
			conn.until(t, func() bool {
				answered := 0
				for _, s := range conn.streams {
					if s.replied {
						answered++
					}
				}
				return conn.lastID == 2*streams-1 && answered == len(conn.streams)
			})
			conn.with(func() bool {
				require.Less(t, conn.kept(), 3*maxOutput)
				return true
			})
			release()
			for _, r := range c.answers(streams) {
				require.Len(t, r.body, maxHeld)
			}
			conn.until(t, func() bool { return conn.open == 0 && conn.resting == 0 })
			require.Zero(t, conn.server.rests.Waiting())
		})
	}
}

// The reader begins no further request while the output is large, also if it has arrived already.
// Before, a client that did not read could have as many answers added as requests fit its buffer.
func TestReaderWaitsForTheSocket(t *testing.T) {
	const requests = 600
	var reading atomic.Pointer[conn]
	most := 0
	c, conn, release := dialHeld(t, func(config *Config) {
		config.Direct = func(*Head) bool {
			conn := reading.Load()
			for conn.open > 1 { // wait until the earlier ones are answered
				conn.mu.Unlock()
				runtime.Gosched()
				conn.mu.Lock()
			}
			most = max(most, conn.kept())
			return true
		}
		config.Call = func(s *Call) bool {
			s.Fail(hpack.HeaderField{Name: "grpc-message", Value: long(2000)})
			return true
		}
	})
	reading.Store(conn)
	var all bytes.Buffer
	framer := http2.NewFramer(&all, nil)
	for i := range uint32(requests) {
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1 + 2*i, BlockFragment: c.head(callPath), EndHeaders: true, EndStream: true}))
	}
	require.Less(t, all.Len(), readBuffer)
	_, err := c.Conn.Write(all.Bytes())
	require.NoError(t, err)
	var last uint32
	same := 0 // for how many looks nothing has changed, so that the reader probably waits
	conn.until(t, func() bool {
		if conn.lastID != last {
			last, same = conn.lastID, 0
		}
		same++
		return conn.open == 0 && conn.kept() > maxOutput && (same > 20 || last == 2*requests-1)
	})
	release()
	require.Len(t, c.answers(requests), requests)
	conn.with(func() bool {
		require.Less(t, most, 3*maxOutput)
		return true
	})
}

// until waits until f returns true. It is called with the lock of the connection.
func (c *conn) until(t *testing.T, f func() bool) {
	t.Helper()
	require.Eventually(t, func() bool { return c.with(f) }, patient, time.Millisecond)
}
