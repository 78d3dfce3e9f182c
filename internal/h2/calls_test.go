package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
)

// Bodies of every size are answered, over one connection, however they are cut into frames.
func TestCallsOfAllSizes(t *testing.T) {
	_, addr := serveFor(t, nil)
	c := dial(t, addr)
	id := uint32(1)
	for _, size := range []int{0, 1, 5, 1000, 16 << 10, 60 << 10} {
		for _, piece := range []int{16_000, 1000, 7} {
			if size/piece > 1000 {
				continue
			}
			body := long(size)
			c.open(id, callPath, false)
			for rest := body; rest != ""; rest = rest[min(piece, len(rest)):] {
				require.NoError(t, c.WriteDataPadded(id, false, []byte(rest[:min(piece, len(rest))]), make([]byte, size%3)))
			}
			c.data(id, true, "")
			require.Equal(t, body, c.answer(id).body)
			id += 2
		}
	}
	c.open(id, callPath, true)
	require.Empty(t, c.answer(id).body)
}

// A body that is larger than the window of its stream arrives because a call waits for it.
func TestLargeBody(t *testing.T) {
	_, addr := serveFor(t, nil)
	client := http.Client{Transport: &http2.Transport{AllowHTTP: true, DialTLSContext: plainDial}}
	defer client.CloseIdleConnections()
	for _, path := range []string{callPath, handlerPath} {
		body := long(1<<20 - 1)
		r, err := client.Post("http://"+addr+path, "application/grpc", strings.NewReader(body))
		require.NoError(t, err)
		got, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.True(t, body == string(got), path)
		require.NoError(t, r.Body.Close())
	}
}

func plainDial(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, addr)
}

// Everything else goes to the handler: with trailers, other methods and no body.
func TestHandler(t *testing.T) {
	_, addr := serveFor(t, nil)
	c := dial(t, addr)
	c.open(1, handlerPath+"?q=1", false, ":method", "PUT")
	r := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameHeaders })
	require.False(t, r.(*http2.HeadersFrame).StreamEnded(), "the header is sent before the body has arrived")
	c.data(1, false, "abc")
	c.data(1, true, "defg")
	answer := c.answer(1)
	require.Equal(t, "abcdefg", answer.body)
	require.Equal(t, map[string]string{"sum": "7", "undeclared": "yes"}, answer.trailer)
	c.open(3, "no path", true)
	require.Equal(t, "400", c.answer(3).head[":status"])
	c.works(5)
}

// Many streams at once get their own answers, and each connection keeps its own state.
func TestConcurrentStreams(t *testing.T) {
	_, addr := serveFor(t, nil)
	var clients sync.WaitGroup
	for range 4 {
		c := dial(t, addr)
		clients.Go(func() {
			for round := range uint32(10) {
				for i := range uint32(100) {
					id := round*200 + i*2 + 1
					c.open(id, []string{callPath, handlerPath}[i%10/9], false)
					c.data(id, true, long(int(id)))
				}
				for id, r := range c.answers(100) {
					if len(r.body) != int(id) {
						t.Errorf("stream %d: %d bytes", id, len(r.body))
					}
				}
			}
		})
	}
	clients.Wait()
}

// Whatever table a client keeps, it can decode the answers.
func TestHeaderTables(t *testing.T) {
	_, addr := serveFor(t, nil)
	for _, size := range []uint32{0, 60, 100, 4096, 1 << 20} {
		c := dial(t, addr, http2.Setting{ID: http2.SettingHeaderTableSize, Val: size})
		c.decoder.SetAllowedMaxDynamicTableSize(size)
		for id := uint32(1); id < 20; id += 2 {
			c.works(id)
		}
		require.NoError(t, c.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
		for id := uint32(21); id < 40; id += 2 {
			c.works(id)
		}
	}
}

// Answers of the handler do not change the client's table, in which the blocks of calls have their
// places. Before, a status such as 405 moved these, and every later call of the connection had a
// wrong head and trailer: an unknown client could send one through a proxy that shares connections.
func TestStatusesKeepTheTable(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) {
		config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			status, err := strconv.Atoi(r.URL.Path[1:])
			require.NoError(t, err)
			w.WriteHeader(status)
		})
	})
	c := dial(t, addr)
	id := uint32(1)
	for _, status := range []string{"", "405", "200", "415", "404", "503"} {
		if status != "" {
			c.open(id, "/"+status, true)
			require.Equal(t, status, c.answer(id).head[":status"])
			id += 2
		}
		for range 3 {
			c.works(id)
			id += 2
		}
	}
}

// A header block may be split, and its table is kept in step, also for streams that are refused.
func TestContinuation(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) { config.Limits.HeaderBytes = 2000 })
	c := dial(t, addr)
	split := func(id uint32, block []byte, parts int) {
		piece := len(block)/parts + 1
		require.NoError(t, c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block[:piece], EndStream: true}))
		for rest := block[piece:]; rest != nil; {
			n := min(piece, len(rest))
			require.NoError(t, c.WriteContinuation(id, n == len(rest), rest[:n]))
			if rest = rest[n:]; len(rest) == 0 {
				rest = nil
			}
		}
	}
	split(1, c.head(callPath, "new", "in the table"), 5)
	require.Equal(t, "0", c.answer(1).trailer["grpc-status"])
	split(3, c.head(callPath, "large", long(1900)), 2)
	require.Equal(t, http2.ErrCodeFrameSize, c.answer(3).reset)
	c.open(5, callPath, true, "new", "in the table", "bad name", "x")
	require.Equal(t, http2.ErrCodeProtocol, c.answer(5).reset)
	c.works(7)
}

// A call that is answered before the client has sent everything does not need the rest.
func TestEarlyAnswer(t *testing.T) {
	_, addr := serveFor(t, func(config *Config) { config.Call = func(s *Call) bool { s.Answer([]byte("early")); return true } })
	c := dial(t, addr)
	c.open(1, callPath, false)
	require.Equal(t, "early", c.answer(1).body)
	f := c.until(func(f http2.Frame) bool { return f.Header().Type == http2.FrameRSTStream })
	require.Equal(t, http2.ErrCodeNo, f.(*http2.RSTStreamFrame).ErrCode)
	c.data(1, false, "late")
	c.headers(1, true, c.encode([][2]string{{"a", "b"}}))
	c.open(3, callPath, true)
	require.Equal(t, "early", c.answer(3).body)
}

// After a panic, or without an answer, the stream is reset, and the connection stays open.
func TestPanicsOfStreams(t *testing.T) {
	faults := make(chan any, 2)
	_, addr := serveFor(t, func(config *Config) {
		config.Panicked = func(fault any) { faults <- fault }
		config.Call = func(s *Call) bool {
			switch s.Head().Get("do") {
			case "panic":
				panic("in the call")
			case "":
				echo(s)
			}
			return true
		}
		config.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("in the handler") })
	})
	c := dial(t, addr)
	c.open(1, callPath, true, "do", "panic")
	require.Equal(t, http2.ErrCodeInternal, c.answer(1).reset)
	require.Equal(t, "in the call", <-faults)
	c.open(3, handlerPath, true)
	require.Equal(t, http2.ErrCodeInternal, c.answer(3).reset)
	require.Equal(t, "in the handler", <-faults)
	c.open(5, callPath, true, "do", "nothing")
	require.Equal(t, http2.ErrCodeInternal, c.answer(5).reset)
	c.works(7)
}

// Answers to one client are one write if they are decided together.
func TestAnswersShareAWrite(t *testing.T) {
	const calls = 50
	var decided sync.WaitGroup
	decided.Add(calls)
	release := make(chan struct{})
	_, addr := serveFor(t, func(config *Config) {
		config.Call = func(s *Call) bool {
			decided.Done()
			<-release
			s.Answer(bytes.Repeat([]byte("x"), 100))
			return true
		}
	})
	c := dial(t, addr)
	for i := range uint32(calls) {
		c.open(2*i+1, callPath, true)
	}
	decided.Wait()
	close(release)
	require.Len(t, c.answers(calls), calls)
}
