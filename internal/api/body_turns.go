package api

import (
	"context"
	"errors"
	"math"
	"net/http"
	"time"

	"weir/internal/limit"
	"weir/internal/places"
)

// A decoded body takes many times its size in memory, and decoding uses the processor: 4 KB with
// many errors take some milliseconds, 4 MiB up to a second. Bodies of more than turnBody take
// turns, from the check of their form until their handler begins: those of up to smallBody among
// short work (places.Processors), so that the small changes of a tenant wait for none of another's
// large documents, and larger ones among long work. Large requests of the hot endpoints
// (decode_turns.go) and long explanations (explain.go) take turns among short work, too.
//
// The turns go to tenants: those of one do not take all places if there are several, and a tenant
// with few is next. While one among short work is taken, its request waits for nothing else.
//
// A large body takes memory from its first byte on, also while it arrives slowly or waits for its
// turn. So the bytes of large bodies are limited by tenant until their requests end.
const (
	turnBody        = 256       // bytes; a body in YAML takes a turn in any case
	smallBody       = 4 << 10   // bytes; larger ones are long work
	largeBody       = 64 << 10  // bytes; those of larger ones are limited by tenant
	maxYAMLBodies   = 2         // of them, while they are converted to JSON; a tenant may have one
	maxBodies       = 256 << 20 // bytes of large bodies on an instance
	maxTenantBodies = 32 << 20
	// turnWait is how long a request waits for its turn. 4 MiB take less than a second.
	turnWait = 2 * time.Second
)

// bodyTurns are the turns of one instance.
type bodyTurns struct {
	small, large, batches *places.Turns[limit.TenantID] // those of all short work, of all long work, and of batches
	yaml                  *places.Turns[limit.TenantID]
	held                  *places.Bytes[limit.TenantID] // bytes of large bodies until their requests end
	wait, reading         time.Duration                 // for a turn: of a body, and to encode a document
	piece                 time.Duration                 // for a turn of a piece of an import
}

func newBodyTurns(processors *places.Processors) bodyTurns {
	return bodyTurns{
		small: processors.Short, large: processors.Long, batches: processors.Batches,
		yaml: places.NewTurns[limit.TenantID](min(maxYAMLBodies, processors.Long.Most()), 1, 0),
		held: places.NewBytes[limit.TenantID](maxBodies, maxTenantBodies),
		wait: turnWait, reading: createdWait, piece: importTurnWait,
	}
}

// of returns the turns of bodies of this size.
func (b *bodyTurns) of(size int) *places.Turns[limit.TenantID] {
	if size <= smallBody {
		return b.small
	}
	return b.large
}

// turn waits for a turn of the tenant until ctx ends. If the client has not disconnected, the
// caller gets a turn that is free in any case. If there is no problem, it must call leave once.
func (a *capacity) turn(ctx context.Context, turns *places.Turns[limit.TenantID], tenant limit.TenantID) (leave func(), p *Problem) {
	return a.turnWithin(ctx, turns, tenant, math.MaxInt64)
}

// turnWithin is turn that waits no longer than most.
func (a *capacity) turnWithin(
	ctx context.Context, turns *places.Turns[limit.TenantID], tenant limit.TenantID, most time.Duration,
) (leave func(), p *Problem) {
	if errors.Is(ctx.Err(), context.Canceled) { // the client has disconnected
		return nil, overloaded()
	}
	leave, err := turns.TakeWithin(ctx, tenant, most)
	if err != nil {
		a.refuse()
		return nil, overloaded()
	}
	return leave, nil
}

// turnWithin is turn of the request's tenant, for which it waits so long.
func (q *request) turnWithin(ctx context.Context, turns *places.Turns[limit.TenantID], wait time.Duration) (leave func(), p *Problem) {
	return q.capacity.turnWithin(ctx, turns, q.actor.TenantID(), wait)
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

// takeTurn waits for the turn of a body, unless it is small enough to need none. endTurn must
// follow in any case.
func (q *request) takeTurn(r *http.Request, size int) (p *Problem) {
	if size > turnBody {
		bodies := &q.capacity.bodies
		q.turn, p = q.turnWithin(r.Context(), bodies.of(size), bodies.wait)
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

// convertYAML converts a body to JSON when it is the tenant's turn. endTurn must follow in any
// case.
//
// A body that is not small waits for a turn among those in YAML first: it would keep others in JSON
// waiting meanwhile. It waits for both turns no longer than another body for one.
func (q *request) convertYAML(r *http.Request, body []byte) (out []byte, p *Problem) {
	bodies, tenant := &q.capacity.bodies, q.actor.TenantID()
	ctx, cancel := context.WithTimeout(r.Context(), bodies.wait)
	defer cancel()
	if len(body) > smallBody {
		leave, p := q.capacity.turn(ctx, bodies.yaml, tenant)
		if p != nil {
			return nil, p
		}
		defer leave()
	}
	if q.turn, p = q.capacity.turn(ctx, bodies.of(len(body)), tenant); p != nil {
		return nil, p
	}
	return jsonOfYAML(r.Context(), body)
}
