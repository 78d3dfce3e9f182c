package weir

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience is how long anything may take that a test awaits. No test that passes waits for all of
// it.
const patience = 30 * time.Second

// An action is what the scripted server does with one request. The README of the suite describes
// the fields.
type action struct {
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

func (a *action) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		return json.Unmarshal(b, &a.Use)
	}
	type plain action
	return strict(b, (*plain)(a))
}

// A fixture is a whole answer.
type fixture struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
}

// A request is what the scripted server has read.
type request struct {
	Method, Path string
	Header       http.Header
	Body         []byte
}

// A scripted server plays a list of actions, one for each request in the order of arrival.
type scripted struct {
	t        *testing.T
	fixtures map[string]fixture
	address  string

	mu       sync.Mutex
	script   []action
	next     int
	requests []request
	arrived  chan struct{} // closed and replaced with each request
	released chan struct{} // closed by release
	listener net.Listener
	conns    map[net.Conn]struct{}
	all      sync.WaitGroup
}

func newScripted(t *testing.T, fixtures map[string]fixture, script []action, up bool) *scripted {
	t.Helper()
	s := &scripted{t: t, fixtures: fixtures, arrived: make(chan struct{}), released: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	for _, a := range script {
		for range max(1, a.Repeat) {
			s.script = append(s.script, a)
		}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = listener.Addr().String()
	if up {
		s.serve(listener)
	} else {
		_ = listener.Close()
	}
	t.Cleanup(func() {
		s.down()
		s.all.Wait()
	})
	return s
}

func (s *scripted) serve(listener net.Listener) {
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

// up listens again on the same port.
func (s *scripted) up() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.serve(listener)
}

// down stops listening and closes all connections.
func (s *scripted) down() {
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

func (s *scripted) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.released)
}

// converse reads requests from a connection and plays an action for each, until one ends the
// connection.
func (s *scripted) converse(conn net.Conn) {
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
		a, ok := s.record(request{Method: r.Method, Path: r.URL.RequestURI(), Header: r.Header, Body: body})
		if !ok || !s.play(conn, a) {
			return
		}
	}
}

// record takes note of a request and returns the action for it.
func (s *scripted) record(r request) (action, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r)
	close(s.arrived)
	s.arrived = make(chan struct{})
	if s.next >= len(s.script) {
		s.t.Errorf("the script has %d actions, and one more request arrived: %s %s", len(s.script), r.Path, r.Body)
		return action{}, false
	}
	s.next++
	return s.script[s.next-1], true
}

// play carries out an action and reports whether the connection stays open.
func (s *scripted) play(conn net.Conn, a action) bool {
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
		s.t.Errorf("unknown fault %q", a.Fault)
	}
	return false
}

// compose makes the head and the body of an answer.
func (s *scripted) compose(a action) (head, body []byte) {
	f, known := s.fixtures[a.Use]
	if a.Use != "" && !known {
		s.t.Errorf("unknown fixture %q", a.Use)
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
		body = bodyOf(s.t, f.Body, a.Body)
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

func (s *scripted) results(entries [][]any) []byte {
	results := make([]any, len(entries))
	for i, entry := range entries {
		var result map[string]any
		must(s.t, json.Unmarshal(s.fixtures[entry[0].(string)].Body, &result))
		for name, value := range entry[1].(map[string]any) {
			result[name] = value
		}
		results[i] = result
	}
	body, err := json.Marshal(map[string]any{"results": results})
	must(s.t, err)
	return body
}

// bodyOf merges the change into the fixture's body where both are objects, and returns the bytes to
// send.
func bodyOf(t *testing.T, base, change json.RawMessage) []byte {
	if change == nil {
		change = base
	} else if base != nil && change[0] == '{' && base[0] == '{' {
		var merged, changes map[string]any
		must(t, json.Unmarshal(base, &merged))
		must(t, json.Unmarshal(change, &changes))
		for name, value := range changes {
			merged[name] = value
		}
		body, err := json.Marshal(merged)
		must(t, err)
		return body
	}
	var text string
	if len(change) > 0 && change[0] == '"' {
		must(t, json.Unmarshal(change, &text))
		return []byte(text)
	}
	return change
}

// count returns how many requests have arrived.
func (s *scripted) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// fromLatest returns the request that arrived so many before the latest.
func (s *scripted) fromLatest(back int) (request, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := len(s.requests) - 1 - back; i >= 0 {
		return s.requests[i], true
	}
	return request{}, false
}

// await returns when n requests have arrived.
func (s *scripted) await(n int) {
	s.t.Helper()
	deadline := time.After(patience)
	for {
		s.mu.Lock()
		count, arrived := len(s.requests), s.arrived
		s.mu.Unlock()
		if count >= n {
			return
		}
		select {
		case <-arrived:
		case <-deadline:
			s.t.Fatalf("%d of %d requests arrived", count, n)
		}
	}
}

// unmet returns how many actions no request has met that should have been.
func (s *scripted) unmet() int {
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
