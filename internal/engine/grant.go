package engine

import (
	"context"
	"errors"
	"time"

	"weir/internal/limit"
)

// A Granter charges units that a client may grant from its own memory.
type Granter interface {
	Grant(ctx context.Context, c *Call, most int64) (Grant, error)
	Refund(ctx context.Context, refunds ...*Refund)
}

// A Grant is units that a client holds. They are charged, as those of a lease of this process
// are (see lease), and only the client knows how many it grants.
type Grant struct {
	Units int64
	// Life is how long the client may grant them, from any instant before Stack.Grant was called.
	Life  time.Duration
	Parts []GrantPart // one for each counter to which units can be returned
}

// GrantPart is the part of a Grant for one counter. It can be stored as JSON, so keys, which are no
// text, are bytes.
type GrantPart struct {
	Key     []byte
	ID      []byte
	Numbers limit.Numbers // without Bounds
	Ground  int64         // as in RefundPart
	// Spare is units that were charged to the counter in addition to Grant.Units. They are returned
	// with the rest.
	Spare int64
}

// Errors of Grant.
var (
	// ErrTooFew: too few units are left to be worth a grant, or the window ends too soon. A check
	// may still be allowed.
	ErrTooFew = errors.New("too few units are left for a grant")
	// ErrShadowDenies: a counter in shadow mode has too few units. Each check must reach it, so
	// that it can report whom it would deny.
	ErrShadowDenies = errors.New("a counter in shadow mode has too few units left for a grant")
	// ErrDenied: an enforcing counter has nothing left. The outcome of the call is the denial of a
	// call of cost 1.
	ErrDenied = errors.New("nothing is left")
)

const (
	// grantShortest is the shortest life that is worth a grant.
	grantShortest = 20 * time.Millisecond
	// clockDrift is by how much the clock of a client may be slower than that of the store: one
	// part in clockDrift.
	clockDrift = 500
)

// Grant charges up to most units to the counters of c, all of them or none, for a client. It grants
// at most 1/limit.LeaseShare of the units that remain. The error is one of the above, or that of
// the store. Grant fills in the outcome of the call; with ErrTooFew and ErrShadowDenies it is
// undefined.
//
// A counter in shadow mode must have the units, too, but never denies. All counters must be
// Leasable.
func (s *Stack) Grant(ctx context.Context, c *Call, most int64) (Grant, error) {
	c.PerCounter, c.DryRun, c.Fresh, c.Leased, c.NowMS = false, false, false, false, 0
	units, cushion, err := s.affordable(ctx, c, most)
	if errors.Is(err, ErrTooFew) && s.leases.yield(c) {
		units, cushion, err = s.affordable(ctx, c, most)
	}
	switch {
	case errors.Is(err, ErrDenied):
		return Grant{}, s.deny(ctx, c)
	case err != nil:
		return Grant{}, err
	}
	shadow := unshadow(c)
	sent := s.clock()
	c.Cost, c.Started = units+cushion, sent
	s.store(ctx, c)
	shadow.restore(c)
	switch {
	case c.Err != nil:
		return Grant{}, c.Err
	case !c.Outcome.Allowed: // others were faster
		return Grant{}, ErrTooFew
	}
	l := newLease(c.Counters, c, c.Cost, sent)
	life := l.until.Sub(sent)
	life -= life/clockDrift + time.Millisecond
	left := max(0, l.left.Load())
	g := Grant{Units: min(left, most), Life: life}
	g.Parts = l.parts(c.Counters, left-g.Units)
	if g.Units < 1 || life < grantShortest {
		s.Refund(ctx, g.Returned(g.Units))
		return Grant{}, ErrTooFew
	}
	return g, nil
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

// affordable returns how many units to grant, and how many to charge in addition as the cushion of
// buckets.
func (s *Stack) affordable(ctx context.Context, c *Call, most int64) (units, cushion int64, err error) {
	c.Cost, c.Started = 0, s.clock()
	s.store(ctx, c)
	if c.Err != nil {
		return 0, 0, c.Err
	}
	left, inShadow := limit.MaxFixedLimit, false
	for i := range c.Counters {
		n, remaining := &c.Counters[i].Numbers, c.Outcome.Verdicts[i].Remaining
		if remaining == 0 && !c.Counters[i].Shadow {
			return 0, 0, ErrDenied
		}
		if remaining < left {
			left, inShadow = remaining, c.Counters[i].Shadow
		}
		if n.Algorithm.Bucket() {
			cushion = max(cushion, n.RefillWhileLeased(0)-(n.Burst-remaining))
		}
	}
	units = min(most, left/limit.LeaseShare-cushion)
	switch {
	case units >= min(most, limit.LeaseLeast):
		return units, cushion, nil
	case inShadow:
		return 0, 0, ErrShadowDenies
	}
	return 0, 0, ErrTooFew
}

// deny fills in the outcome of a denied call of cost 1, and returns ErrDenied. It charges nothing.
func (s *Stack) deny(ctx context.Context, c *Call) error {
	c.Cost, c.DryRun, c.Started = 1, true, s.clock()
	s.store(ctx, c)
	switch {
	case c.Err != nil:
		return c.Err
	case c.Outcome.Allowed: // units were returned in the meantime
		return ErrTooFew
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
			r.Parts = append(r.Parts, RefundPart{Key: string(p.Key), ID: string(p.ID), Numbers: n, Units: back, Ground: p.Ground})
		}
	}
	return r
}

var _ Granter = (*Stack)(nil)
