package tests

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// mailSink is a mail server that accepts each login and stores the messages.
type mailSink struct {
	listener net.Listener
	mu       sync.Mutex
	mails    []string
}

func newMailSink(t testing.TB) *mailSink {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &mailSink{listener: listener}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.serve(conn) })
		}
	})
	t.Cleanup(func() { _ = listener.Close() }) // connections end with the server under test
	return s
}

func (s *mailSink) serve(conn net.Conn) {
	defer conn.Close()
	text := textproto.NewConn(conn)
	say := func(line string) { _ = text.PrintfLine("%s", line) }
	say("220 mail.example ESMTP")
	for {
		line, err := text.ReadLine()
		if err != nil {
			return
		}
		switch command := strings.ToUpper(line); {
		case strings.HasPrefix(command, "EHLO"):
			say("250-mail.example")
			say("250-8BITMIME")
			say("250 AUTH CRAM-MD5")
		case strings.HasPrefix(command, "AUTH"):
			say("334 PDEyMzQ1QGV4YW1wbGU+")
			if _, err := text.ReadLine(); err != nil {
				return
			}
			say("235 Accepted")
		case command == "DATA":
			say("354 Start mail input")
			data, err := text.ReadDotBytes()
			if err != nil {
				return
			}
			s.mu.Lock()
			s.mails = append(s.mails, string(data))
			s.mu.Unlock()
			say("250 Taken")
		case command == "QUIT":
			say("221 Bye")
			return
		default:
			say("250 OK")
		}
	}
}

func (s *mailSink) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Long lines of a mail are broken with a soft line break, which is no part of the text.
	return strings.NewReplacer("=\r\n", "", "=\n", "", "=3D", "=").Replace(strings.Join(s.mails, "\n"))
}

// received is a request that a server of the test got.
type received struct {
	header http.Header
	path   string
	body   string
}

// httpSink is an HTTP server that stores requests and answers them with a status and their own
// headers.
type httpSink struct {
	*httptest.Server
	mu   sync.Mutex
	seen []received
}

func newHTTPSink(t testing.TB, status int) *httpSink {
	t.Helper()
	s := &httpSink{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body) // what arrived is enough
		s.mu.Lock()
		s.seen = append(s.seen, received{r.Header.Clone(), r.URL.Path, string(body)})
		s.mu.Unlock()
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "refused: "+r.Header.Get("Authorization"))
	}))
	t.Cleanup(s.Close)
	return s
}

// find returns the first request whose body contains all texts.
func (s *httpSink) find(texts ...string) (received, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.seen {
		found := true
		for _, text := range texts {
			found = found && strings.Contains(r.body, text)
		}
		if found {
			return r, true
		}
	}
	return received{}, false
}

// await is find, which waits.
func (s *httpSink) await(t testing.TB, texts ...string) (r received) {
	t.Helper()
	require.Eventually(t, func() (found bool) {
		r, found = s.find(texts...)
		return found
	}, patience, tick, "no request with %q", texts)
	return r
}
