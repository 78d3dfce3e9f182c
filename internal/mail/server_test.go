package mail

import (
	"bufio"
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net"
	"net/mail"
	"net/textproto"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// mailServer implements the part of SMTP that our client needs, and stores the messages.
type mailServer struct {
	t        *testing.T
	listener net.Listener
	mu       sync.Mutex
	refuse   []string // responses to the next recipients, instead of accepting them
	taken    chan envelope
}

type envelope struct {
	from, to string
	data     []byte
}

func newMailServer(t *testing.T) *mailServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &mailServer{t: t, listener: listener, taken: make(chan envelope, 100)}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s
}

func (s *mailServer) url() string { return "smtp://" + s.listener.Addr().String() }

func (s *mailServer) refuseNext(answers ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = append(s.refuse, answers...)
}

func (s *mailServer) refusal() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.refuse) == 0 {
		return ""
	}
	answer := s.refuse[0]
	s.refuse = s.refuse[1:]
	return answer
}

func (s *mailServer) serve(conn net.Conn) {
	defer conn.Close()
	text := textproto.NewConn(conn)
	say := func(line string) { _ = text.PrintfLine("%s", line) }
	say("220 mail.example ESMTP")
	var e envelope
	for {
		line, err := text.ReadLine()
		if err != nil {
			return
		}
		switch command := strings.ToUpper(line); {
		case strings.HasPrefix(command, "EHLO"):
			say("250-mail.example")
			say("250 8BITMIME")
		case strings.HasPrefix(command, "MAIL FROM:"):
			e = envelope{from: line}
			say("250 OK")
		case strings.HasPrefix(command, "RCPT TO:"):
			if answer := s.refusal(); answer != "" {
				say(answer)
				continue
			}
			e.to = line
			say("250 OK")
		case command == "DATA":
			say("354 Start mail input")
			if e.data, err = text.ReadDotBytes(); err != nil {
				return
			}
			s.taken <- e
			say("250 Taken")
		case command == "QUIT":
			say("221 Bye")
			return
		default: // RSET, NOOP
			say("250 OK")
		}
	}
}

// read parses a message: its header, and its parts by type.
func read(t *testing.T, data []byte) (mail.Header, map[string]string) {
	t.Helper()
	m, err := mail.ReadMessage(bytes.NewReader(data))
	require.NoError(t, err)
	_, params, err := mime.ParseMediaType(m.Header.Get("Content-Type"))
	require.NoError(t, err)
	parts := map[string]string{}
	reader := multipart.NewReader(bufio.NewReader(m.Body), params["boundary"])
	for {
		part, err := reader.NextRawPart()
		if err == io.EOF {
			return m.Header, parts
		}
		require.NoError(t, err)
		require.Equal(t, "quoted-printable", part.Header.Get("Content-Transfer-Encoding"))
		body, err := io.ReadAll(quotedprintable.NewReader(part))
		require.NoError(t, err)
		kind, _, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
		require.NoError(t, err)
		parts[kind] = strings.ReplaceAll(string(body), "\r\n", "\n")
	}
}
