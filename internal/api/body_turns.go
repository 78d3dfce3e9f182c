package api

import (
	"context"
	"net/http"
	"time"

	"weir/internal/limit"
	"weir/internal/places"
)

// A decoded body takes many times its size in memory, and decoding uses the processor: 4 KB with
// many errors take some milliseconds. Bodies of more than turnBody take turns, from the check of
// their form until their handler begins, on at most half of the processors: checks need the others.
// The turns go to tenants: those of one do not take all places if there are several, and a tenant
// with few is next.
//
// A large body takes memory from its first byte on, also while it arrives slowly or waits for its
// turn. So the bytes of large bodies are limited by tenant until their requests end.
const (
	turnBody        = 256       // bytes
	largeBody       = 64 << 10  // bytes
	maxBodyTurns    = 4         // on an instance with 8 processors or more; a tenant may have half of them
	maxYAMLBodies   = 2         // of any size, while they are converted to JSON; a tenant may have one
	maxBodies       = 256 << 20 // bytes of large bodies on an instance
	maxTenantBodies = 32 << 20
	// turnWait is how long a request waits for its turn. 4 MiB take less than a second.
	turnWait = 2 * time.Second
)

// bodyTurns are the turns of one instance.
type bodyTurns struct {
	json, yaml *places.Turns[limit.TenantID]
	held       *places.Bytes[limit.TenantID] // bytes of large bodies until their requests end
	wait       time.Duration
}

func newBodyTurns(processors int) bodyTurns {
	turns := min(processors/2, maxBodyTurns)
	return bodyTurns{
		json: places.NewTurns[limit.TenantID](turns, turns/2, 0),
		yaml: places.NewTurns[limit.TenantID](min(turns, maxYAMLBodies), 1, 0),
		held: places.NewBytes[limit.TenantID](maxBodies, maxTenantBodies),
		wait: turnWait,
	}
}

// turn waits for a turn of the tenant, but not longer than the client. If there is no problem, the
// caller must call leave once.
func (a *capacity) turn(ctx context.Context, turns *places.Turns[limit.TenantID], tenant limit.TenantID) (leave func(), p *Problem) {
	if ctx.Err() != nil { // the client has disconnected
		return nil, overloaded()
	}
	leave, err := turns.TakeWithin(ctx, tenant, a.bodies.wait)
	if err != nil {
		a.refuse()
		return nil, overloaded()
	}
	return leave, nil
}

// hold counts the bytes of a body that may be large, before it is read and until its request ends.
// A body of unknown length counts as one of most bytes.
func (q *request) hold(r *http.Request, most int) *Problem {
	return q.holdBody(r, q.actor.TenantID(), most)
}

// holdBody is hold where the middleware does not know the tenant.
func (q *request) holdBody(r *http.Request, tenant limit.TenantID, most int) *Problem {
	size := most
	if r.ContentLength >= 0 {
		size = int(min(r.ContentLength, int64(most)))
	}
	if size <= largeBody {
		return nil
	}
	leave, ok := q.capacity.bodies.held.Take(tenant, size)
	if !ok {
		q.capacity.refuse()
		return closing(r, overloaded())
	}
	q.atEnd(leave)
	return nil
}

// takeTurn waits for the turn of a body, unless it is small. endTurn must follow in any case.
func (q *request) takeTurn(r *http.Request, size int) (p *Problem) {
	if size > turnBody {
		q.turn, p = q.capacity.turn(r.Context(), q.capacity.bodies.json, q.actor.TenantID())
	}
	return p
}

// endTurn ends the turn of a body, if it has one.
func (q *request) endTurn() {
	if q != nil && q.turn != nil {
		q.turn()
		q.turn = nil
	}
}

// convertYAML converts a body to JSON when it is the tenant's turn.
func (q *request) convertYAML(r *http.Request, body []byte) ([]byte, *Problem) {
	leave, p := q.capacity.turn(r.Context(), q.capacity.bodies.yaml, q.actor.TenantID())
	if p != nil {
		return nil, p
	}
	defer leave()
	return jsonOfYAML(r.Context(), body)
}
