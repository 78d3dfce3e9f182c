package api

import (
	"context"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"weir/internal/origin"
	"weir/internal/tenants"
)

// answerLane answers a request, or reports false for one that the ordinary road is to answer: then
// nothing was counted for it.
func (s *server) answerLane(c *laneConn, h *laneHead) (answered bool) {
	start := time.Now()
	inFlight := s.metrics.inFlight.Add(1)
	defer s.metrics.inFlight.Add(-1)
	if inFlight > s.maxInFlight {
		return false
	}
	if c.key != string(h.key) {
		c.key = string(h.key)
	}
	ctx := context.Background()
	actor, err := s.Authenticator.Authenticate(ctx, c.key)
	if err != nil || !actor.Has(tenants.ScopeCheck) || actor.Operator() {
		return false
	}
	sc := scratches.get()
	defer scratches.put(sc)
	if sc.decoder.decodeCheck(h.body, &sc.checks[0]) != nil {
		return false
	}
	policy, err := s.Policies.Get(ctx, actor.TenantID())
	if err != nil || !policy.HasPlan(sc.checks[0].Plan) {
		return false
	}
	if s.Quota != nil {
		if _, ok := s.Quota.Admit(ctx, policy, 1); !ok {
			return false
		}
	}
	defer func() {
		if fault := recover(); fault != nil {
			// It may have been counted: the ordinary road must not do so again.
			s.metrics.panics.Inc()
			s.logger.LogAttrs(ctx, slog.LevelError, "panic while serving a check",
				slog.Any("panic", fault), slog.String("stack", string(debug.Stack())))
			c.in, answered = nil, true
		}
	}()
	decisions, err := s.Checker.CheckIn(ctx, policy, sc.checks[:], &sc.room)
	if err != nil { // the plan was deleted in this moment
		return false
	}
	d := &decisions[0]
	status := http.StatusOK
	if !d.Allowed {
		status = h.deniedStatus
	}
	sc.out = append(appendDecision(sc.out[:0], d), '\n')
	sc.headers.build(s.style, d)
	sc.wire = sc.appendAnswer(sc.wire[:0], status, h.requestID, start)
	c.send(sc.wire, h.size)
	s.metrics.observe(routeCheck, "", status, time.Since(start))
	return true
}

// appendAnswer appends the answer as it is sent: the same headers as on the ordinary road.
func (sc *scratch) appendAnswer(b []byte, status int, requestID []byte, now time.Time) []byte {
	if status == http.StatusOK {
		b = append(b, "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: application/json\r\n"...)
	} else {
		b = append(b, "HTTP/1.1 429 Too Many Requests\r\nCache-Control: no-store\r\nContent-Type: application/json\r\n"...)
	}
	from := 0
	for i := range sc.headers.count {
		b = append(b, sc.headers.names[i]...)
		b = append(b, ": "...)
		b = append(b, sc.headers.buf[from:sc.headers.ends[i]]...)
		b = append(b, "\r\n"...)
		from = sc.headers.ends[i]
	}
	b = append(b, "X-Request-Id: "...)
	if requestID != nil {
		b = append(b, requestID...)
	} else {
		b = origin.AppendID(b)
	}
	b = append(b, "\r\nDate: "...)
	b = append(b, httpDate(now)...)
	b = append(b, "\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(sc.out)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, sc.out...)
}

// dateText is the value of the header Date in one second.
type dateText struct {
	second int64
	text   string
}

var lastDate atomic.Pointer[dateText]

// httpDate returns the value of the header Date. It is made once a second.
func httpDate(now time.Time) string {
	second := now.Unix()
	if last := lastDate.Load(); last != nil && last.second == second {
		return last.text
	}
	text := now.UTC().Format(http.TimeFormat)
	lastDate.Store(&dateText{second, text})
	return text
}
