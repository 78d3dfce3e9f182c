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

// refuseLane answers a request before anything of it is used but its length, after a pause. The
// request keeps no place and no memory meanwhile. If the connection paused after the answer, a
// proxy would send the requests of others on it, and they would wait.
func (s *server) refuseLane(c *laneConn, pause time.Duration) {
	took := time.Since(c.startedAt)
	c.leave()
	c.release()
	c.rest(pause)
	sc := scratches.get()
	defer scratches.put(sc)
	s.metrics.overloaded.Inc()
	if c.head.authorize {
		c.key = string(c.head.key)
		sc.authorize = c.authorizeQuestion(s)
		status := s.refuseGateway(c, &sc.authorize, sc)
		s.metrics.observe(routeAuthorize, "", status, took)
		return
	}
	r := &laneRefusals[0]
	if !bytes.HasPrefix(c.in, laneLines[0]) {
		r = &laneRefusals[1]
	}
	s.sendRefusal(c, r, sc)
	s.metrics.observe(routeCheck, "", http.StatusServiceUnavailable, took)
}

func (s *server) sendRefusal(c *laneConn, r *refusal, sc *scratch) {
	id := c.head.requestID
	if id == nil {
		sc.out = origin.AppendID(sc.out[:0])
		id = sc.out
	}
	sc.wire = r.append(sc.wire[:0], id, c)
	c.send(sc.wire, c.head.size)
}

// refuseGateway answers a request to /v1/authorize. The route's fail setting says how, so the key
// and the route are read. It returns the status.
func (s *server) refuseGateway(c *laneConn, q *authorizeQuestion, sc *scratch) (status int) {
	p := overloaded()
	status = p.Status
	if s.failsOpen(context.Background(), q, p) {
		status = http.StatusNoContent
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
		s.sendRefusal(c, &r, sc)
	}
	return status
}

// rest waits for the pause before a refusal, or until the listener is closed.
func (c *laneConn) rest(pause time.Duration) {
	if pause == 0 {
		return
	}
	if c.timer == nil {
		c.timer = time.NewTimer(pause)
	} else {
		c.timer.Reset(pause)
	}
	select {
	case <-c.timer.C:
	case <-c.closed:
		c.timer.Stop()
	}
}
