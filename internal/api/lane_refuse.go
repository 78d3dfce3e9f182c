package api

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"weir/internal/origin"
)

// A refusal of the lane is 503 OVERLOADED, with the same headers and body as from net/http. It
// needs no key and no body, and most of its bytes are encoded in advance. The connection stays on
// the lane: a new connection would cost more than the check that was refused.

// refusal has the parts of the answer around the id and the date, for one path.
type refusal struct {
	head string // up to the headers for browsers
	body string // up to the value of request_id
}

const (
	refusalLength  = "\r\nContent-Length: "
	refusalBodyEnd = "\"}"
)

// laneRefusals are the refusals of laneLines, in that order.
var laneRefusals = func() (refusals []refusal) {
	for _, line := range laneLines {
		refusals = append(refusals, newRefusal(overloaded(), string(bytes.Fields(line)[1])))
	}
	return refusals
}()

func newRefusal(p *Problem, path string) refusal {
	p.Instance = path
	body, err := json.Marshal(p)
	if err != nil { // only strings and numbers: cannot fail
		panic(err)
	}
	return refusal{
		head: "HTTP/1.1 " + strconv.Itoa(p.Status) + " " + http.StatusText(p.Status) +
			"\r\nCache-Control: no-store\r\nContent-Type: " + p.ContentType("") + "\r\nRetry-After: " + strconv.Itoa(p.retryAfter) +
			"\r\n" + decisionHeader + ": " + decisionNone + "\r\n",
		body: string(body[:len(body)-1]) + `,"request_id":"`,
	}
}

// append appends the answer to the request that c has read. An id needs no escape
// (origin.HarmlessID).
func (r *refusal) append(b, id []byte, c *laneConn) []byte {
	b = append(append(append(b, r.head...), c.browserLines()...), "X-Request-Id: "...)
	b = append(append(b, id...), "\r\nDate: "...)
	b = append(append(b, httpDate(c.startedAt)...), refusalLength...)
	b = strconv.AppendInt(b, int64(len(r.body)+len(id)+len(refusalBodyEnd)), 10)
	b = append(b, "\r\n\r\n"...)
	if c.head.withHead {
		return b
	}
	return append(append(append(b, r.body...), id...), refusalBodyEnd...)
}

// refuseLane answers a request before anything of it is used but its length. The connection pauses
// after it.
func (s *server) refuseLane(c *laneConn, pause time.Duration) {
	sc := scratches.get()
	defer scratches.put(sc)
	if c.head.authorize {
		c.key = string(c.head.key)
		sc.authorize = c.authorizeQuestion(s)
		s.refuseGateway(c, &sc.authorize, sc, pause)
		return
	}
	r := &laneRefusals[0]
	if !bytes.HasPrefix(c.in, laneLines[0]) {
		r = &laneRefusals[1]
	}
	s.sendRefusal(c, r, sc, pause)
	s.metrics.overloaded.Inc()
	s.metrics.observe(routeCheck, "", http.StatusServiceUnavailable, time.Since(c.startedAt))
}

func (s *server) sendRefusal(c *laneConn, r *refusal, sc *scratch, pause time.Duration) {
	id := c.head.requestID
	if id == nil {
		sc.out = origin.AppendID(sc.out[:0])
		id = sc.out
	}
	sc.wire = r.append(sc.wire[:0], id, c)
	c.pause = pause
	c.send(sc.wire, c.head.size)
}

// refuseGateway answers a request to /v1/authorize. The route's fail setting says how, so the key
// and the route are read.
func (s *server) refuseGateway(c *laneConn, q *authorizeQuestion, sc *scratch, pause time.Duration) {
	p := overloaded()
	status := p.Status
	if s.failsOpen(context.Background(), q, p) {
		status = http.StatusNoContent
		c.pause = pause
		sc.wire = append(sc.wire[:0], "HTTP/1.1 204 No Content\r\nCache-Control: no-store\r\n"+decisionHeader+": "+decisionNone+"\r\n"...)
		sc.wire = append(append(sc.wire, c.browserLines()...), "X-Request-Id: "...)
		if c.head.requestID != nil {
			sc.wire = append(sc.wire, c.head.requestID...)
		} else {
			sc.wire = origin.AppendID(sc.wire)
		}
		sc.wire = append(append(append(sc.wire, "\r\nDate: "...), httpDate(c.startedAt)...), "\r\n\r\n"...)
		c.send(sc.wire, c.head.size)
	} else {
		path, _, _ := bytes.Cut(c.head.path, []byte{'?'})
		r := newRefusal(p, authorizePath+string(path))
		s.sendRefusal(c, &r, sc, pause)
	}
	s.metrics.overloaded.Inc()
	s.metrics.observe(routeAuthorize, "", status, time.Since(c.startedAt))
}

// rest waits for the pause after a refusal. It returns false if the listener was closed.
func (c *laneConn) rest(closed <-chan struct{}) bool {
	if c.timer == nil {
		c.timer = time.NewTimer(c.pause)
	} else {
		c.timer.Reset(c.pause)
	}
	c.pause = 0
	select {
	case <-c.timer.C:
		return true
	case <-closed:
		c.timer.Stop()
		return false
	}
}
