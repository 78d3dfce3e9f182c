// Package scripted is a server that runs the actions of the behaviour suite in ../../../suite,
// whose README describes them. The tests of this client import it. Those in other languages use the
// command withscripted.
package scripted

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Patience is the timeout of all waits in tests. Passing tests wait less.
const Patience = 30 * time.Second

// An Action is the behavior of the scripted server for one request. The README of the suite
// describes the fields.
type Action struct {
	Use        string             `json:"use"`
	Status     int                `json:"status"`
	Headers    map[string]*string `json:"headers"`
	Body       json.RawMessage    `json:"body"`
	BodyRepeat []any              `json:"body_repeat"`
	Results    [][]any            `json:"results"`
	Repeat     int                `json:"repeat"`
	Optional   bool               `json:"optional"`
	Connection string             `json:"connection"`
	Hold       bool               `json:"hold"`
	Fault      string             `json:"fault"`
}

func (a *Action) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &a.Use)
	}
	type plain Action
	return Strict(b, (*plain)(a))
}

// A Fixture is a complete answer.
type Fixture struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
}

// A Request is a request that the scripted server has read.
type Request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
}

// A Server runs a list of actions, one for each request in the order of arrival.
type Server struct {
	// Address is its address, even while it does not listen.
	Address string

	fixtures map[string]Fixture
	mu       sync.Mutex
	problems []string
	script   []Action
	next     int
	requests []Request
	arrived  chan struct{} // closed and replaced with each request
	released chan struct{} // closed by release
	listener net.Listener
	conns    map[net.Conn]struct{}
	all      sync.WaitGroup
}

// ReadFixtures reads the named answers on which actions are based.
func ReadFixtures(folder string) (fixtures map[string]Fixture, err error) {
	content, err := os.ReadFile(filepath.Join(folder, "fixtures.json"))
	if err != nil {
		return nil, err
	}
	return fixtures, Strict(content, &fixtures)
}

// Strict decodes JSON and refuses unknown fields.
func Strict(b []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

// New starts a server. With up false, its address refuses connections.
func New(fixtures map[string]Fixture, script []Action, up bool) (*Server, error) {
	s := &Server{fixtures: fixtures, arrived: make(chan struct{}), released: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	for _, a := range script {
		for range max(1, a.Repeat) {
			s.script = append(s.script, a)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s.Address = listener.Addr().String()
	if up {
		s.serve(listener)
	} else {
		_ = listener.Close()
	}
	return s, nil
}

// Close stops the server and closes its connections.
func (s *Server) Close() {
	s.Down()
	s.Release()
	s.all.Wait()
}

// problem records an error of the script or the client.
func (s *Server) problem(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

// Problems returns the recorded errors: a request after the end of the script, or an invalid
// action.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.problems...)
}

func (s *Server) serve(listener net.Listener) {
	s.mu.Lock()
	s.listener = listener
	s.mu.Unlock()
	s.all.Add(1)
	go func() {
		defer s.all.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.mu.Lock()
			if s.listener != listener { // Down has closed the other connections meanwhile
				s.mu.Unlock()
				_ = conn.Close()
				return
			}
			s.conns[conn] = struct{}{}
			s.mu.Unlock()
			s.all.Add(1)
			go func() {
				defer s.all.Done()
				s.converse(conn)
				_ = conn.Close()
				s.mu.Lock()
				delete(s.conns, conn)
				s.mu.Unlock()
			}()
		}
	}()
}

// Up listens again on the same port.
func (s *Server) Up() error {
	listener, err := net.Listen("tcp", s.Address)
	if err != nil {
		return err
	}
	s.serve(listener)
	return nil
}

// Down stops listening and closes all connections.
func (s *Server) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	for conn := range s.conns {
		_ = conn.Close()
	}
}

// Release sends all held answers, and answers immediately from now on.
func (s *Server) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.released:
	default:
		close(s.released)
	}
}

// converse reads requests from a connection and runs an action for each, until one ends the
// connection.
func (s *Server) converse(conn net.Conn) {
	reader := bufio.NewReader(conn)
	for {
		r, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		a, ok := s.record(Request{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header, Body: body})
		if !ok || !s.play(conn, a) {
			return
		}
	}
}

// record records a request and returns its action.
func (s *Server) record(r Request) (Action, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	close(s.arrived)
	s.arrived = make(chan struct{})
	if s.next >= len(s.script) {
		s.problems = append(s.problems, fmt.Sprintf("the script has %d actions, and one more request arrived: %s %s", len(s.script), r.Path, r.Body))
		return Action{}, false
	}
	s.next++
	return s.script[s.next-1], true
}

// play runs an action and reports whether the connection stays open.
func (s *Server) play(conn net.Conn, a Action) bool {
	if a.Hold {
		<-s.released
	}
	switch a.Fault {
	case "reset":
		_ = conn.(*net.TCPConn).SetLinger(0)
		return false
	case "close":
		return false
	case "hang":
		_, _ = io.Copy(io.Discard, conn)
		return false
	case "garbage":
		_, _ = io.WriteString(conn, "this is not HTTP\r\n\r\n")
		return false
	}
	head, body := s.compose(a)
	switch a.Fault {
	case "":
		_, err := conn.Write(append(head, body...))
		return err == nil && a.Connection != "close"
	case "cut_body", "hang_in_body":
		_, _ = conn.Write(append(head, body[:len(body)/2]...))
		if a.Fault == "hang_in_body" {
			_, _ = io.Copy(io.Discard, conn)
		}
	default:
		s.problem("unknown fault %q", a.Fault)
	}
	return false
}

// compose returns the header and the body of an answer.
func (s *Server) compose(a Action) (head, body []byte) {
	f, known := s.fixtures[a.Use]
	if a.Use != "" && !known {
		s.problem("unknown fixture %q", a.Use)
	}
	status, headers := f.Status, http.Header{}
	for name, value := range f.Headers {
		headers[name] = []string{value}
	}
	if a.Status != 0 {
		status = a.Status
	}
	for name, value := range a.Headers {
		if value == nil {
			delete(headers, name)
		} else {
			headers[name] = []string{*value}
		}
	}
	switch {
	case a.Results != nil:
		body = s.results(a.Results)
	case a.BodyRepeat != nil:
		body = []byte(strings.Repeat(a.BodyRepeat[0].(string), int(a.BodyRepeat[1].(float64))))
	default:
		body = bodyOf(f.Body, a.Body)
	}
	if a.Connection != "" {
		headers["Connection"] = []string{a.Connection}
	}
	if status != http.StatusNoContent {
		headers["Content-Length"] = []string{fmt.Sprint(len(body))}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	for name, values := range headers {
		fmt.Fprintf(&b, "%s: %s\r\n", name, values[0])
	}
	b.WriteString("\r\n")
	return []byte(b.String()), body
}

func (s *Server) results(entries [][]any) []byte {
	results := make([]any, len(entries))
	for i, entry := range entries {
		results[i] = merged(s.fixtures[entry[0].(string)].Body, entry[1].(map[string]any))
	}
	return encode(map[string]any{"results": results})
}

// bodyOf merges the change into the fixture's body if both are objects, and returns the bytes to
// send.
func bodyOf(base, change json.RawMessage) []byte {
	if change == nil {
		change = base
	} else if base != nil && change[0] == '{' && base[0] == '{' {
		return encode(merged(base, decode[map[string]any](change)))
	}
	if len(change) > 0 && change[0] == '"' {
		return []byte(decode[string](change))
	}
	return change
}

func merged(base json.RawMessage, changes map[string]any) map[string]any {
	body := decode[map[string]any](base)
	for name, value := range changes {
		body[name] = value
	}
	return body
}

// decode and encode process values that were decoded from JSON before, so an error is a bug in this
// package.
func decode[T any](b []byte) (v T) {
	if err := json.Unmarshal(b, &v); err != nil {
		panic(err)
	}
	return v
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

// Count returns the number of requests that have arrived.
func (s *Server) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// FromLatest returns a request by its position from the end; 0 is the latest.
func (s *Server) FromLatest(back int) (Request, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := len(s.requests) - 1 - back; i >= 0 {
		return s.requests[i], true
	}
	return Request{}, false
}

// Await returns when n requests have arrived.
func (s *Server) Await(n int) error {
	deadline := time.After(Patience)
	for {
		s.mu.Lock()
		count, arrived := len(s.requests), s.arrived
		s.mu.Unlock()
		if count >= n {
			return nil
		}
		select {
		case <-arrived:
		case <-deadline:
			return fmt.Errorf("%d of %d requests arrived", count, n)
		}
	}
}

// Unmet returns the number of required actions without a request.
func (s *Server) Unmet() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, a := range s.script[min(s.next, len(s.script)):] {
		if !a.Optional {
			n++
		}
	}
	return n
}
