package engine

import (
	"context"
	"errors"
	"time"

	"weir/internal/limit"
)

// A Granter charges units that a client may grant from its own memory.
type Granter interface {
	Grant(ctx context.Context, c *Call, most int64, hold time.Duration) (Grant, error)
	Refund(ctx context.Context, refunds ...*Refund)
}

// A Grant is units that a client holds. They are charged, as those of a lease of this process
// are (see lease), and only the client knows how many it grants.
type Grant struct {
	Units int64
	// Life is how long the client may grant them, from any instant before Stack.Grant was called.
	Life  time.Duration `json:"-"`
	Parts []GrantPart   // one for each counter to which units can be returned
	// ChargedMS is as in RefundPart.
	ChargedMS int64 `json:",omitempty"`
}

// GrantPart is the part of a Grant for one counter. It can be stored as JSON, so keys, which are no
// text, are bytes. The names of fields stay: another version may read what this one has stored.
type GrantPart struct {
	Key     []byte
	ID      []byte
	Numbers limit.Numbers // without Bounds
	Ground  int64         `json:",omitempty"` // as in RefundPart
	// Spare is units that were charged to the counter in addition to Grant.Units. They are returned
	// with the rest.
	Spare int64 `json:",omitempty"`
}

// ErrDenied is the error of Grant if an enforcing counter has nothing left. The outcome of the call
// is the denial of a call of cost 1.
var ErrDenied = errors.New("nothing is left")

// RefusedError is the error of Grant if units are left, but cannot be granted now.
type RefusedError struct {
	Counter int // because of which; -1: others took the units, several times
	Why     Refusal
}

// Refusal is the reason of a RefusedError.
type Refusal uint8

const (
	// OthersWereFaster: other calls took the units between two calls of Grant.
	OthersWereFaster Refusal = iota
	// ShadowDenies: a counter in shadow mode has nothing left. Each check must reach it, so that it
	// can report whom it would deny.
	ShadowDenies
	// WindowEnds: the window of the counter ends too soon.
	WindowEnds
	// BucketRefills: the bucket refills so fast that the cushion would be too large.
	BucketRefills
)

var refusals = [...]string{
	OthersWereFaster: "others took the units in the meantime", ShadowDenies: "a counter in shadow mode has nothing left",
	WindowEnds: "the window ends too soon", BucketRefills: "the bucket refills too fast for its remaining units",
}

func (e *RefusedError) Error() string { return refusals[e.Why] }

const (
	// grantShortest is the shortest life that is worth a grant.
	grantShortest = 20 * time.Millisecond
	// grantLeastHoldMS is the shortest time for which units of a bucket are held: what is left of
	// it after clockDrift is at least grantShortest.
	grantLeastHoldMS = 25
	// clockDrift is by how much the clock of a client may be slower than that of the store: one
	// part in clockDrift.
	clockDrift = 500
	// grantAttempts is how often a grant is tried again after others took the units.
	grantAttempts = 3
)

// grantPlan is what Grant charges.
type grantPlan struct {
	units   int64
	cushion int64 // of buckets, in addition
	holdMS  int64 // from the charge
}

// Grant charges up to most units to the counters of c, all of them or none, for a client that may
// hold them for hold. It grants at most 1/limit.LeaseShare of the units that remain, and at least
// one. The error is ErrDenied, a *RefusedError, or that of the store. Grant fills in the outcome of
// the call; with a *RefusedError it is undefined.
//
// A counter in shadow mode must have the units, too, but never denies. All counters must be
// Leasable.
func (s *Stack) Grant(ctx context.Context, c *Call, most int64, hold time.Duration) (Grant, error) {
	c.PerCounter, c.DryRun, c.Fresh, c.Leased, c.NowMS = false, false, false, false, 0
	for range grantAttempts {
		plan, err := s.planGrant(ctx, c, most, hold)
		if c.Err == nil && (err != nil || plan.units < min(most, limit.LeaseLeast)) && s.leases.yield(c) {
			plan, err = s.planGrant(ctx, c, most, hold)
		}
		var g Grant
		switch {
		case err == nil:
			g, err = s.charge(ctx, c, most, plan)
		case errors.Is(err, ErrDenied):
			err = s.deny(ctx, c)
		}
		if again := (*RefusedError)(nil); errors.As(err, &again) && again.Why == OthersWereFaster {
			continue
		}
		return g, err
	}
	return Grant{}, &RefusedError{Counter: -1, Why: OthersWereFaster}
}

// charge charges the units of a plan.
func (s *Stack) charge(ctx context.Context, c *Call, most int64, plan grantPlan) (Grant, error) {
	shadow := unshadow(c)
	sent := s.clock()
	c.Cost, c.Started = plan.units+plan.cushion, sent
	s.store(ctx, c)
	shadow.restore(c)
	switch {
	case c.Err != nil:
		return Grant{}, c.Err
	case !c.Outcome.Allowed:
		return Grant{}, &RefusedError{Counter: -1, Why: OthersWereFaster}
	}
	l := newLease(c.Counters, c, c.Cost, leaseTerms{sent: sent, holdMS: plan.holdMS, least: plan.units})
	life := l.until.Sub(sent)
	life -= life/clockDrift + time.Millisecond
	left := max(0, l.left.Load())
	g := Grant{Units: min(left, most), Life: life, ChargedMS: l.nowMS}
	g.Parts = l.parts(c.Counters, left-g.Units)
	if g.Units < 1 || life < grantShortest {
		s.Refund(ctx, g.Returned(g.Units))
		return Grant{}, l.refusal(c.Counters)
	}
	return g, nil
}

// refusal returns why a lease that was charged is too short: a window ends before it, or the
// cushion of a bucket would be too large.
func (l *lease) refusal(counters []Counter) *RefusedError {
	refused, soonest := &RefusedError{Counter: -1}, l.nowMS+grantLeastHoldMS
	for i := range counters {
		n := &counters[i].Numbers
		if end, window := windowEndOf(n, &l.verdicts[i], l.nowMS); window && end <= soonest {
			refused.Counter, refused.Why, soonest = i, WindowEnds, end
		} else if n.Algorithm.Bucket() && refused.Why != WindowEnds {
			refused.Counter, refused.Why = i, BucketRefills
		}
	}
	return refused
}

// store evaluates a call in the counter store, without the layers that answer from memory or
// without the store.
func (s *Stack) store(ctx context.Context, c *Call) {
	c.Err = nil
	s.fallback.evaluate(ctx, []*Call{c})
	if c.Err == nil {
		c.Outcome.Degraded = false
		s.fallback.note(c)
	}
}

// planGrant returns what to charge: a quarter of what remains, including the cushion of buckets.
// The cushion is at most half of that. If it would be more, the units are held for a shorter time.
func (s *Stack) planGrant(ctx context.Context, c *Call, most int64, hold time.Duration) (p grantPlan, err error) {
	c.Cost, c.Started = 0, s.clock()
	s.store(ctx, c)
	if c.Err != nil {
		return p, c.Err
	}
	left, least := limit.MaxFixedLimit, 0
	for i := range c.Counters {
		remaining := c.Outcome.Verdicts[i].Remaining
		if remaining == 0 && !c.Counters[i].Shadow {
			return p, ErrDenied
		}
		if remaining < left {
			left, least = remaining, i
		}
	}
	if left == 0 {
		return p, &RefusedError{Counter: least, Why: ShadowDenies}
	}
	quarter := left / limit.LeaseShare
	p.holdMS = hold.Milliseconds()
	for i := range c.Counters {
		if n := &c.Counters[i].Numbers; n.Algorithm.Bucket() {
			p.holdMS = min(p.holdMS, n.HoldFor(quarter/2+n.Burst-c.Outcome.Verdicts[i].Remaining))
		}
	}
	p.holdMS = max(p.holdMS, grantLeastHoldMS)
	bucket := 0
	for i := range c.Counters {
		if n := &c.Counters[i].Numbers; n.Algorithm.Bucket() {
			if cushion := n.RefillWithin(p.holdMS) - (n.Burst - c.Outcome.Verdicts[i].Remaining); cushion > p.cushion {
				p.cushion, bucket = cushion, i
			}
		}
	}
	if p.cushion > 0 && p.cushion >= quarter {
		return p, &RefusedError{Counter: bucket, Why: BucketRefills}
	}
	p.units = min(most, max(1, quarter-p.cushion))
	return p, nil
}

// deny fills in the outcome of a denied call of cost 1, and returns ErrDenied. It charges nothing.
func (s *Stack) deny(ctx context.Context, c *Call) error {
	c.Cost, c.DryRun, c.Started = 1, true, s.clock()
	s.store(ctx, c)
	c.DryRun = false
	switch {
	case c.Err != nil:
		return c.Err
	case c.Outcome.Allowed: // units were returned in the meantime
		return &RefusedError{Counter: -1, Why: OthersWereFaster}
	}
	return ErrDenied
}

// yield returns the units that this process holds of the counters of c, and reports whether there
// were any.
func (l *Leases) yield(c *Call) bool {
	if len(c.Counters) == 0 || len(c.Counters) > maxLeased {
		return false
	}
	set, known := l.sets.Load(l.hash(c.Counters))
	return known && l.returnAll(set)
}

// shadowed are the counters of a call in shadow mode, by index.
type shadowed []int

// unshadow makes all counters of a call enforcing.
func unshadow(c *Call) (s shadowed) {
	for i := range c.Counters {
		if c.Counters[i].Shadow {
			s = append(s, i)
			c.Counters[i].Shadow = false
		}
	}
	return s
}

func (s shadowed) restore(c *Call) {
	for _, i := range s {
		c.Counters[i].Shadow = true
	}
}

// parts returns the counters to which units of the lease can be returned. Unused units are returned
// in any case. A bucket keeps what it drains until the lease ends: a client may grant units until
// then, and nobody else knows when it granted the last one.
func (l *lease) parts(counters []Counter, unused int64) (parts []GrantPart) {
	for i := range counters {
		c := &counters[i]
		n, spare := c.Numbers, l.cushion+unused
		if n.Algorithm.Bucket() {
			if !n.Refundable() {
				continue
			}
			spare = max(0, spare-l.drained(&n, i, l.storeNow(l.until)))
		}
		ground := n.Ground(&l.verdicts[i], l.nowMS)
		n.Bounds = nil
		parts = append(parts, GrantPart{Key: []byte(c.OwnKey()), ID: []byte(c.ID), Numbers: n, Ground: ground, Spare: spare})
	}
	return parts
}

// Returned returns the refund of a grant of which the client did not grant units.
func (g *Grant) Returned(units int64) *Refund {
	r := &Refund{}
	for i := range g.Parts {
		p := &g.Parts[i]
		n := p.Numbers
		if n.Calendar != limit.NoCalendar {
			n.Bounds = &limit.Bounds{} // the ground names the window
		}
		if back := units + p.Spare; back > 0 {
			r.Parts = append(r.Parts, RefundPart{Key: string(p.Key), ID: string(p.ID), Numbers: n, Units: back, Ground: p.Ground, ChargedMS: g.ChargedMS})
		}
	}
	return r
}

var _ Granter = (*Stack)(nil)
