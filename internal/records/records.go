// Package records gives tenants their turns at Redis for records: the answers of checks with an
// Idempotency-Key (package once), and the leases of clients (package leases).
//
// A call for a record is one command, and not part of a pipeline of checks, in which tenants take
// turns. So it has a connection of a client that is only for records, and a turn: one tenant has at
// most half of the turns, and a quarter of them is only for tenants that have none. However many
// requests with keys some tenants send, they wait for their own turns. No check waits for them.
//
// For example, a tenant sends 300 checks with a key at once, while Redis answers within 1 ms. Eight
// claims are on their way at any time, so the last one is sent after 37 ms. A check of another
// tenant with a key is sent at once, and one without a key uses other connections.
package records

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"weir/internal/places"
)

// The turns of one instance, each for one call to Redis, or for the calls of one lease.
const (
	turns         = 16
	tenantTurns   = turns / 2
	reservedTurns = turns / 4
)

// Connections is the number of connections to each server of Redis. Those beyond the turns are for
// refunds, of which an instance sends few.
const Connections = turns + 8

// ErrBusy is the error of a call that had no turn in time. It was not sent.
var ErrBusy = errors.New("the tenant has too many calls for records at once")

// Turns are the turns of all tenants. A nil *Turns has one for everybody. Use NewTurns.
type Turns struct{ places *places.Turns[uuid.UUID] }

// NewTurns returns the turns of an instance.
func NewTurns() *Turns {
	return &Turns{places.NewTurns[uuid.UUID](turns, tenantTurns, reservedTurns)}
}

// Do runs call when it is the tenant's turn. If that is not within wait, or before ctx ends, it
// returns ErrBusy instead.
func (t *Turns) Do(ctx context.Context, tenant uuid.UUID, wait time.Duration, call func()) error {
	if t == nil {
		call()
		return nil
	}
	leave, err := t.places.TakeWithin(ctx, tenant, wait)
	if err != nil {
		return ErrBusy
	}
	defer leave()
	call()
	return nil
}
