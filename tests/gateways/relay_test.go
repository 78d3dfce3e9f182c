package gateways

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// behavior is how Weir behaves towards a gateway.
type behavior int

const (
	healthy   behavior = iota
	hanging            // it reads requests and does not answer
	crashing           // it reads requests and closes the connection
	late               // it answers after answerNow
	exhausted          // the tenant is over its own quota
	wrongKey           // the gateway has a key that Weir does not know
)

// A relay is a proxy between one gateway and Weir.
type relay struct {
	t        testing.TB
	server   string // the address of Weir
	address  string
	keys     map[string]string // the key of the gateway, and its replacement
	unknown  string
	listener net.Listener
	tls      *tls.Config // nil: without TLS

	mu          sync.Mutex
	behavior    behavior
	changed     chan struct{} // closed when the behavior changes
	release     chan struct{} // closed when late responses are sent
	connections map[net.Conn]struct{}
	accepted    int
	asked       []*asked
}

// asked is one request of a gateway, with the response; status 0 without a response.
type asked struct {
	head   string
	status int
	answer string // with its headers
}

func newRelay(t testing.TB, server string) *relay {
	t.Helper()
	r := &relay{t: t, server: server, changed: make(chan struct{}), release: make(chan struct{}),
		connections: map[net.Conn]struct{}{}}
	require.Eventually(t, func() bool { // another program may take a free address first
		r.address = freeAddress(t)
		return r.tryListen() == nil
	}, harness.Patience, harness.Tick)
	t.Cleanup(r.die)
	return r
}

// freeAddress returns a loopback address without a listener. Its port is below those that the
// kernel uses for outgoing connections.
func freeAddress(t testing.TB) string {
	t.Helper()
	for range 100 {
		address := net.JoinHostPort("127.0.0.1", freePort())
		listener, err := net.Listen("tcp", address)
		if err == nil {
			require.NoError(t, listener.Close())
			return address
		}
	}
	require.Fail(t, "no free port")
	return ""
}

// listen ends die.
func (r *relay) listen() {
	r.t.Helper()
	require.Eventually(r.t, func() bool { return r.tryListen() == nil }, harness.Patience, harness.Tick)
}

func (r *relay) tryListen() error {
	listener, err := net.Listen("tcp", r.address)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.listener = listener
	r.mu.Unlock()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			r.mu.Lock()
			r.accepted++
			r.connections[conn] = struct{}{}
			r.mu.Unlock()
			go r.serve(conn)
		}
	}()
	return nil
}

// die closes the listener and all connections.
func (r *relay) die() {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = r.listener.Close()
	for conn := range r.connections {
		_ = conn.Close()
	}
	r.connections = map[net.Conn]struct{}{}
}

// behave changes the behavior, and closes connections that wait for a response.
func (r *relay) behave(b behavior) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.behavior = b
	close(r.changed)
	r.changed = make(chan struct{})
	r.release = make(chan struct{})
}

func (r *relay) state() (behavior, chan struct{}, chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.behavior, r.changed, r.release
}

// answerNow sends all late responses.
func (r *relay) answerNow() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.release)
	r.release = make(chan struct{})
}

// serve relays one connection, request by request.
func (r *relay) serve(accepted net.Conn) {
	defer func() {
		_ = accepted.Close()
		r.mu.Lock()
		delete(r.connections, accepted)
		r.mu.Unlock()
	}()
	conn := accepted
	r.mu.Lock()
	secure := r.tls
	r.mu.Unlock()
	if secure != nil {
		if b, changed, _ := r.state(); b == hanging {
			<-changed
			return
		}
		conn = tls.Server(accepted, secure)
	}
	server, err := net.Dial("tcp", r.server)
	if err != nil {
		return
	}
	defer server.Close()
	fromGateway, fromServer := bufio.NewReader(conn), bufio.NewReader(server)
	for r.serveOne(conn, server, fromGateway, fromServer) == nil {
	}
}

var errEnd = errors.New("the connection is closed")

func (r *relay) serveOne(conn, server net.Conn, fromGateway, fromServer *bufio.Reader) error {
	head, err := readHead(fromGateway)
	if err != nil {
		return err
	}
	b, changed, release := r.state()
	question := &asked{head: string(head)}
	r.mu.Lock()
	r.asked = append(r.asked, question)
	r.mu.Unlock()
	switch b {
	case hanging:
		<-changed
		return errEnd
	case crashing:
		return errEnd
	case exhausted, wrongKey:
		other := r.keys["exhausted"]
		if b == wrongKey {
			other = r.keys["unknown"]
		}
		head = bytes.ReplaceAll(head, []byte(r.keys["gateway"]), []byte(other))
	}
	if _, err := server.Write(head); err != nil {
		return err
	}
	answer, status, last, err := readAnswer(fromServer)
	if err != nil {
		return err
	}
	if b == late {
		<-release
	}
	r.mu.Lock()
	question.status, question.answer = status, string(answer)
	r.mu.Unlock()
	if _, err = conn.Write(answer); err == nil && last {
		err = errEnd
	}
	return err
}

// readHead reads the header of a request. Gateways must not send bodies: a test would read one as
// an invalid request.
func readHead(from *bufio.Reader) ([]byte, error) {
	var head []byte
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		line, err := from.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		head = append(head, line...)
	}
	return head, nil
}

// readAnswer reads one raw response of Weir, and whether it is the last one of its connection.
// Gateways use GET.
func readAnswer(from *bufio.Reader) (raw []byte, status int, last bool, err error) {
	head, err := readHead(from)
	if err != nil {
		return nil, 0, false, err
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), from)), nil)
	if err != nil {
		return nil, 0, false, err
	}
	// ReadResponse has buffered the bytes after the header, so the body is read from it.
	body, err := io.ReadAll(response.Body)
	return append(head, body...), response.StatusCode, response.Close, err
}

// clear clears the recorded requests and the number of connections.
func (r *relay) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked, r.accepted = nil, len(r.connections)
}

func (r *relay) requests() (all []asked) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, question := range r.asked {
		all = append(all, *question)
	}
	return all
}

func (r *relay) accepts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.accepted
}

// allowed returns how often Weir has answered 204.
func (r *relay) allowed() int {
	n := 0
	for _, a := range r.requests() {
		if a.status == http.StatusNoContent {
			n++
		}
	}
	return n
}

// headersOf returns the Weir headers of a request, with names in lower case.
func headersOf(head string) map[string][]string {
	all := allHeadersOf(head)
	maps.DeleteFunc(all, func(name string, _ []string) bool { return !strings.HasPrefix(name, "weir-") })
	return all
}

func allHeadersOf(head string) map[string][]string {
	found := map[string][]string{}
	for _, line := range strings.Split(strings.TrimSuffix(head, "\r\n\r\n"), "\r\n")[1:] {
		name, value, _ := strings.Cut(line, ":")
		name = strings.ToLower(name)
		found[name] = append(found[name], strings.TrimSpace(value))
	}
	return found
}
