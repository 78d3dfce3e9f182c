package h2

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient is longer than anything takes that a test waits for.
const patient = time.Minute

// testLimits never end anything by time.
func testLimits() Limits {
	return Limits{
		Handlers: 4096, HandlersOf: 4096, Unread: 4096, Rest: 64 << 20, Streams: 250, HeaderBytes: 16 << 10, Window: 64 << 10, ConnWindow: 1 << 20,
		Head: patient, Body: patient, Write: patient, Idle: time.Hour, Ping: time.Hour, Pong: patient, Drain: patient,
		Frames: Budget{Burst: 1000, PerAnswer: 10}, Resets: Budget{Burst: 200, PerAnswer: 1},
	}
}

// echo answers with the body.
func echo(s *Call) bool {
	body, err := s.Body(1<<20, time.Time{})
	switch {
	case err == nil, errors.Is(err, io.ErrUnexpectedEOF):
		s.Answer(body)
	case errors.Is(err, ErrLate):
		s.Fail(hpack.HeaderField{Name: "grpc-status", Value: "4"})
	}
	return true
}

// echoHandler does the same, piece by piece.
func echoHandler(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Trailer", "Sum")
	w.Header().Set("X-Method", r.Method)
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	n, err := io.Copy(w, r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Sum", fmt.Sprint(n))
	w.Header().Set(http.TrailerPrefix+"Undeclared", "yes")
}

const callPath, handlerPath = "/call", "/handler"

// serveFor starts a server. change may change its configuration.
func serveFor(t *testing.T, change func(*Config)) (*Server, string) {
	t.Helper()
	config := Config{
		Limits: testLimits(), Direct: func(h *Head) bool { return h.Path == callPath }, Call: echo, Handler: http.HandlerFunc(echoHandler),
		Panicked: func(fault any) { t.Errorf("panic: %v", fault) },
	}
	if change != nil {
		change(&config)
	}
	server := New(config)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patient)
		defer cancel()
		if !server.stops() {
			require.NoError(t, server.Shutdown(ctx))
		}
		require.NoError(t, <-served)
	})
	return server, listener.Addr().String()
}

func (s *Server) stops() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// client is a client that sends any frames.
type client struct {
	net.Conn
	*http2.Framer
	t       *testing.T
	encoder *hpack.Encoder
	block   bytes.Buffer
	decoder *hpack.Decoder
	fields  []hpack.HeaderField // decoded last
}

// dial connects and exchanges the prefaces.
func dial(t *testing.T, addr string, settings ...http2.Setting) *client {
	t.Helper()
	c := dialSilently(t, addr)
	_, err := io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	require.NoError(t, c.WriteSettings(settings...))
	seen := 0
	c.until(func(f http2.Frame) bool { // the server's settings, and its answer
		if _, ok := f.(*http2.SettingsFrame); ok {
			seen++
		}
		return seen == 2
	})
	require.NoError(t, c.WriteSettingsAck())
	return c
}

func dialSilently(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patient)))
	c := &client{Conn: conn, Framer: http2.NewFramer(conn, conn), t: t}
	c.AllowIllegalWrites = true
	c.encoder = hpack.NewEncoder(&c.block)
	c.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) { c.fields = append(c.fields, f) })
	return c
}

// head returns a header block. fields are names and values; they follow or replace those of an
// ordinary request. An empty value removes a field.
func (c *client) head(path string, fields ...string) []byte {
	list := [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path}, {":authority", "test"}, {"content-type", "application/grpc"}}
	for i := 0; i < len(fields); i += 2 {
		at := 0
		for at < len(list) && list[at][0] != fields[i] {
			at++
		}
		if at == len(list) {
			list = append(list, [2]string{})
		}
		list[at] = [2]string{fields[i], fields[i+1]}
	}
	return c.encode(list)
}

func (c *client) encode(list [][2]string) []byte {
	c.block.Reset()
	for _, f := range list {
		if f[1] != "" {
			require.NoError(c.t, c.encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
	}
	return bytes.Clone(c.block.Bytes())
}

// open opens a stream.
func (c *client) open(id uint32, path string, end bool, fields ...string) {
	c.t.Helper()
	c.headers(id, end, c.head(path, fields...))
}

func (c *client) headers(id uint32, end bool, block []byte) {
	c.t.Helper()
	require.NoError(c.t, c.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block, EndHeaders: true, EndStream: end}))
}

func (c *client) data(id uint32, end bool, body string) {
	c.t.Helper()
	require.NoError(c.t, c.WriteData(id, end, []byte(body)))
}

// until reads frames until f returns true.
func (c *client) until(f func(http2.Frame) bool) http2.Frame {
	c.t.Helper()
	for {
		frame, err := c.ReadFrame()
		require.NoError(c.t, err)
		if h, ok := frame.(*http2.HeadersFrame); ok {
			c.fields = nil
			_, err := c.decoder.Write(h.HeaderBlockFragment())
			require.NoError(c.t, err)
			require.NoError(c.t, c.decoder.Close())
		}
		if f(frame) {
			return frame
		}
	}
}

// reply is an answer.
type reply struct {
	head, trailer map[string]string
	body          string
	reset         http2.ErrCode
}

// answers reads n answers.
func (c *client) answers(n int) map[uint32]*reply {
	c.t.Helper()
	open, done := map[uint32]*reply{}, map[uint32]*reply{}
	c.until(func(f http2.Frame) bool {
		id := f.Header().StreamID
		r := open[id]
		if r == nil {
			r = &reply{}
			open[id] = r
		}
		ended := false
		switch f := f.(type) {
		case *http2.HeadersFrame:
			fields := map[string]string{}
			for _, field := range c.fields {
				fields[field.Name] = field.Value
			}
			if r.head == nil {
				r.head = fields
			}
			r.trailer = fields
			ended = f.StreamEnded()
		case *http2.DataFrame:
			r.body += string(f.Data())
			ended = f.StreamEnded()
			if f.Length > 0 {
				require.NoError(c.t, c.WriteWindowUpdate(0, f.Length))
				if !ended {
					require.NoError(c.t, c.WriteWindowUpdate(id, f.Length))
				}
			}
		case *http2.RSTStreamFrame:
			r.reset = f.ErrCode
			ended = done[id] == nil
		}
		if ended {
			done[id] = r
		}
		return len(done) == n
	})
	return done
}

// answer reads the answer of a stream, which is the only one.
func (c *client) answer(id uint32) *reply {
	c.t.Helper()
	r := c.answers(1)[id]
	require.NotNil(c.t, r, "an answer of another stream")
	return r
}

// works sends a call, and checks that it is answered.
func (c *client) works(id uint32) {
	c.t.Helper()
	c.open(id, callPath, false)
	c.data(id, true, "hello")
	r := c.answer(id)
	require.Equal(c.t, "hello", r.body)
	require.Equal(c.t, "200", r.head[":status"])
	require.Equal(c.t, "application/grpc", r.head["content-type"])
	require.Equal(c.t, map[string]string{"grpc-status": "0"}, r.trailer)
}

// ended requires that the server gives the connection up with a code, and closes it.
func (c *client) ended(code http2.ErrCode) {
	c.t.Helper()
	said := false
	for {
		frame, err := c.ReadFrame()
		if err != nil {
			require.NotErrorIs(c.t, err, os.ErrDeadlineExceeded)
			require.True(c.t, said, "closed without a reason: %v", err)
			return
		}
		if f, ok := frame.(*http2.GoAwayFrame); ok {
			require.Equal(c.t, code, f.ErrCode)
			said = true
		}
	}
}

// refused requires that a stream is reset with a code, and that the connection still works.
func (c *client) refused(id uint32, code http2.ErrCode) {
	c.t.Helper()
	f := c.until(func(f http2.Frame) bool { return f.Header().StreamID == id && f.Header().Type == http2.FrameRSTStream })
	require.Equal(c.t, code, f.(*http2.RSTStreamFrame).ErrCode)
	c.works(id + 100)
}

// flood sends frames until the server gives up. most is how many it must not accept.
func (c *client) flood(most int, send func(i int) error) {
	c.t.Helper()
	sent := make(chan int, 1)
	go func() {
		i := 0
		for ; i < most && send(i) == nil; i++ {
		}
		sent <- i
	}()
	said := false
	var ended error
	for ended == nil {
		var frame http2.Frame
		frame, ended = c.ReadFrame()
		if f, ok := frame.(*http2.GoAwayFrame); ok {
			require.Equal(c.t, http2.ErrCodeEnhanceYourCalm, f.ErrCode)
			said = true
		}
	}
	require.True(c.t, said, "the server gives a reason, and not only %v", ended)
	_ = c.Close()
	<-sent
}

func long(n int) string { return strings.Repeat("x", n) }
