package redis

import (
	"context"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Look makes the Census look at the lists of all tenants.
func (c *Census) Look(ctx context.Context) { c.look(ctx, time.Now(), true) }

// Left returns how many counters the instance may create for a tenant.
func (c *Census) Left(tenant limit.TenantID) int64 { return c.of(tenant).left.Load() }

// Spares returns the number of slots for spare counters of a tenant.
func (c *Census) Spares(tenant limit.TenantID) int64 { return c.of(tenant).spares() }

// Count does what the Census adds to a call that is answered.
func (c *Census) Count() func(*engine.Call) {
	r := newRequest()
	return func(call *engine.Call) {
		calls := [1]*engine.Call{call}
		r.add(call)
		c.reserveAll(r, calls[:], together)
		c.settle(call, &r.calls[0])
		r.reset()
	}
}

// Usable returns how many counters of their own a tenant's subjects may have.
func (c *Census) Usable(tenant limit.TenantID) int64 { return c.of(tenant).usable() }

// Sample returns the number of zero bits of the names in a tenant's list.
func (c *Census) Sample(tenant limit.TenantID) uint32 { return c.of(tenant).sample.Load() }

// Queued removes the counters that wait for the next look, and returns how many there were.
func (c *Census) Queued() (n int) {
	for {
		if _, ok := c.touches.TryDequeue(); !ok {
			return n
		}
		n++
	}
}

// LookAt is Look at another time.
func (c *Census) LookAt(ctx context.Context, now time.Time) { c.look(ctx, now, true) }

// LookDue is a look of Run.
func (c *Census) LookDue(ctx context.Context, now time.Time) { c.look(ctx, now, false) }
