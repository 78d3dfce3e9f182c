package api

import (
	"net"
	"slices"
	"time"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
)

// netHTTPRefusals is how many refusals of the lane take as long as one over net/http, whose body
// was often read and decoded.
const netHTTPRefusals = 8

// pausedCodes are those of refusals for want of a place, which have counted as such. A client that
// repeats such a request at once would take a processor: its body is often decoded before.
var pausedCodes = []string{codeOverloaded, codeSimulationBusy, codeBulkBusy, codeTooManyStreams}

// restBefore pauses before the answer p, as on the lane.
func (q *request) restBefore(p *Problem) {
	if slices.Contains(pausedCodes, p.Code) {
		q.pause(q.capacity.bound.RefuseMore(netHTTPRefusals - 1))
		return
	}
	q.rest()
}

// rest pauses before an error or a redirect while there are very many: a client without an API key
// can ask for 1600 of them at once over 16 connections with HTTP/2.
func (q *request) rest() {
	if !q.resting {
		q.pause(q.capacity.bound.Fail(q.client(), netHTTPRefusals))
	}
}

// client names the tenant of a request, or the site of a client without a key.
func (q *request) client() string {
	tenant := q.tenant
	if q.authed {
		tenant = q.actor.TenantID()
	}
	if tenant != (limit.TenantID{}) {
		return string(tenant[:])
	}
	if q.arrived == nil {
		return ""
	}
	host, _, err := net.SplitHostPort(q.arrived.RemoteAddr)
	if err != nil {
		return q.arrived.RemoteAddr
	}
	return origin.Site(host)
}

// pause pauses before the answer, or until the client has disconnected. The request keeps no place
// and no turn meanwhile.
func (q *request) pause(most time.Duration) {
	q.resting = true
	if most == 0 {
		return
	}
	q.leaveOthers()
	q.endTurn()
	var left <-chan struct{}
	if q.arrived != nil {
		places.Wait(q.arrived.Context())
		left = q.arrived.Context().Done()
	}
	began := time.Now()
	select {
	case <-time.After(most):
	case <-left:
	}
	q.rested += time.Since(began)
}
