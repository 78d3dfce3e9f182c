package api

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"sync/atomic"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
)

// A laneConn is the question for the request that it has read (decide.go).

func (c *laneConn) credentials() (string, *Problem) { return c.key, nil }

// read does not wait, because the body came with the head.
func (c *laneConn) read(sc *scratch) *Problem {
	if c.head.idempotencyKey != nil {
		sc.idempotencyKey = string(c.head.idempotencyKey)
	}
	return nil
}

func (c *laneConn) turns(bodies *bodyTurns, _ *scratch) *places.Turns[limit.TenantID] {
	return turnsFrom(bodies.small, len(c.head.body), largeCheck)
}

func (c *laneConn) decode(policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	return sc.decodeDirect(policy, c.head.body)
}

// caller does not know who sent a request that was forwarded: the connection is that of a proxy. A
// key with networks is then refused here, so net/http decides, which knows the trusted proxies.
func (c *laneConn) caller() netip.Addr {
	if c.head.forwarded {
		return netip.Addr{}
	}
	return addressOfConn(c.Conn)
}

func (c *laneConn) refuseResource(_ *scratch, resource string) *Problem {
	return wrongResource(resource)
}

func (c *laneConn) together() bool { return false }

func (c *laneConn) planField(int) string { return "/plan" }

func (c *laneConn) encode(style HeaderStyle, decisions []check.Decision, sc *scratch) {
	sc.encodeCheck(style, &decisions[0])
}

// answerLane answers the request that c has read, or returns false for one that net/http must
// answer. A problem is never answered here, and means that nothing was counted.
func (s *server) answerLane(c *laneConn) (answered bool) {
	c.startedAt = time.Now()
	c.within = s.capacity
	defer c.leave()
	if !s.capacity.enter() {
		s.refuseLane(c, s.capacity.refuse())
		return true
	}
	if c.key != string(c.head.key) {
		c.key = string(c.head.key)
	}
	sc := scratches.get()
	c.scratch = sc
	if c.head.authorize {
		answered = s.authorizeLane(c, sc)
	} else {
		answered = s.checkLane(c, sc)
	}
	c.release() // not after a panic, because a pipeline may still use it
	return answered
}

// release lets other requests use the memory of the current one.
func (c *laneConn) release() {
	c.asked = nil
	if c.scratch != nil {
		scratches.put(c.scratch)
		c.scratch = nil
	}
}

// longWire is the length of an answer from which on its request keeps nothing else while it is
// sent. The client may not read it.
const longWire = 4 << 10

// sendWire sends the answer in sc.wire. After a long one, sc must not be used.
func (c *laneConn) sendWire(sc *scratch) {
	if len(sc.wire) <= longWire {
		c.send(sc.wire, c.head.size)
		return
	}
	answer := wires.take(&sc.wire)
	c.release()
	c.send(*answer, c.head.size)
	wires.put(answer)
}

func (s *server) checkLane(c *laneConn, sc *scratch) (answered bool) {
	decisions, p := s.decide(context.Background(), c, sc)
	if p != nil && p.Code == codeOverloaded {
		s.refuseLane(c, sc.pause)
		return true
	}
	if p != nil {
		return false
	}
	status := http.StatusOK
	if !decisions[0].Allowed {
		status = c.head.deniedStatus
	}
	sc.wire = sc.appendAnswer(sc.wire[:0], status, c)
	c.sendWire(sc)
	s.metrics.observe(routeCheck, "", status, time.Since(c.startedAt))
	return true
}

func (s *server) authorizeLane(c *laneConn, sc *scratch) (answered bool) {
	q := &sc.authorize
	*q = c.authorizeQuestion(s)
	c.asked = q
	decisions, p := s.decide(context.Background(), q, sc)
	if p != nil && p.Code == codeOverloaded {
		s.refuseLane(c, sc.pause)
		return true
	}
	if p != nil || len(sc.refused) > 0 && !q.via.named() {
		return false
	}
	if len(sc.refused) > 0 && !sc.refused[0].Allowed {
		s.metrics.problems.WithLabelValues(string(sc.refused[0].Code)).Inc()
	}
	status := q.status(decisions[0].Allowed)
	sc.wire = sc.appendAnswer(sc.wire[:0], status, c)
	if c.head.withHead {
		sc.wire = sc.wire[:len(sc.wire)-len(sc.out)]
	}
	c.sendWire(sc)
	s.metrics.observe(routeAuthorize, "", status, time.Since(c.startedAt))
	return true
}

// authorizeQuestion returns the question for a gateway's request that c has read.
func (c *laneConn) authorizeQuestion(s *server) authorizeQuestion {
	return authorizeQuestion{
		key: c.key, lines: c.head.lines, deniedStatus: c.head.deniedStatus, proxies: s.proxies,
		via: via{path: c.head.path, method: c.head.method, conn: c.Conn},
	}
}

// appendAnswer appends the answer with the same headers as net/http would send.
func (sc *scratch) appendAnswer(b []byte, status int, c *laneConn) []byte {
	switch status {
	case http.StatusOK:
		b = append(b, "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: application/json\r\n"...)
	case http.StatusNoContent:
		b = append(b, "HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\n"...)
	case http.StatusForbidden:
		b = append(b, "HTTP/1.1 403 Forbidden\r\nCache-Control: no-store\r\nContent-Type: application/json\r\n"...)
	default:
		b = append(b, "HTTP/1.1 429 Too Many Requests\r\nCache-Control: no-store\r\nContent-Type: application/json\r\n"...)
	}
	from, browser := 0, c.browserLines()
	for i := range sc.headers.count {
		switch name := sc.headers.names[i]; { // in the order of the names, as net/http
		case name[0] == 'W' && len(browser) == len(secureBrowserLines):
			b = append(b, secureLine...)
			browser = browserLines
		case name[0] == 'X':
			b = append(b, browser...)
			browser = ""
		}
		b = append(b, sc.headers.names[i]...)
		b = append(b, ": "...)
		b = append(b, sc.headers.buf[from:sc.headers.ends[i]]...)
		b = append(b, "\r\n"...)
		from = sc.headers.ends[i]
	}
	b = append(b, browser...)
	b = append(b, "X-Request-Id: "...)
	if c.head.requestID != nil {
		b = append(b, c.head.requestID...)
	} else {
		b = origin.AppendID(b)
	}
	b = append(b, "\r\nDate: "...)
	b = append(b, httpDate(c.startedAt)...)
	if status == http.StatusNoContent {
		return append(b, "\r\n\r\n"...)
	}
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(sc.out)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, sc.out...)
}

// The headers for browsers, as of the other answers (SetBrowserHeaders).
const (
	browserLines       = "X-Content-Type-Options: nosniff\r\n"
	secureLine         = "Strict-Transport-Security: max-age=31536000\r\n"
	secureBrowserLines = secureLine + browserLines
)

// browserLines returns the headers for browsers of the answer to the request that c has read.
func (c *laneConn) browserLines() string {
	if _, secure := c.Conn.(*secureConn); !secure {
		return browserLines
	}
	if c.host != string(c.head.host) {
		c.host = string(c.head.host)
		c.remote = !origin.IsLocal(c.host)
	}
	if c.remote {
		return secureBrowserLines
	}
	return browserLines
}

// dateText is the value of the header Date in one second.
type dateText struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dateText]

// httpDate returns the value of the header Date. It is computed once a second.
func httpDate(now time.Time) string {
	second := now.Unix()
	if last := lastDate.Load(); last != nil && last.second == second {
		return last.text
	}
	text := now.UTC().Format(http.TimeFormat)
	lastDate.Store(&dateText{second, text})
	return text
}
