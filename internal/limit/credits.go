package limit

import "slices"

// Credits are prepaid units of a subject for a rule. A check whose cost does not fit in the window
// takes the rest from them. The window never counts these units, so it is never fuller than without
// credits.

// GrantID identifies a grant in all stores.
type GrantID [16]byte

// Grant is prepaid units that were granted together.
type Grant struct {
	ID        GrantID
	Units     int64 // 1 and up
	ExpiresMS int64 // from this instant on it is not spent; 0: never
}

// Spent is how many units of a grant were spent.
type Spent struct {
	ID        GrantID
	Units     int64
	ExpiresMS int64
}

// MaxGrants is the maximum number of grants of one counter that a call can spend.
const MaxGrants = 50

// MostKeptGrants is how many grants of one subject for one rule the counters know about at most:
// all that can be spent, and as many that were spent last, which an instance may still have.
const MostKeptGrants = 2 * MaxGrants

// MaxBalance is the maximum sum of credits that a call computes with: with a limit it is below
// 2^53, up to which the counter store computes exactly. A larger balance counts as this one. It is
// more than any cost, so it decides the same.
const MaxBalance int64 = 8_000_000_000_000_000

// OpenedWithinMS is the wait for a grant that is not open yet.
const OpenedWithinMS int64 = 1000

// SpendsCredits reports whether calls can spend credits beyond the limit of a counter with these
// numbers. The algorithms are those of Overages, for the same reasons.
func (n *Numbers) SpendsCredits() bool { return n.Overages() }

// SpendsCredits reports whether checks can spend credits beyond the limits of the rule: each of its
// counters belongs to one subject, and its units are never prefetched.
func (r *Rule) SpendsCredits() bool { return r.NoCredits() == "" }

// NoCredits returns the field because of which checks cannot spend credits beyond the limits of the
// rule, or "".
func (r *Rule) NoCredits() (field string) {
	field, _ = r.creditsProblem()
	return field
}

func (r *Rule) creditsProblem() (field string, p *Problem) {
	switch n := r.Numbers(); {
	case r.Algorithm.Bucket():
		return "algorithm", Wrong("Choose a rule with a fixed or sliding window.", "has the algorithm %s: credits need a window that can be full", r.Algorithm)
	case r.Algorithm == SlidingWindowLog:
		return "algorithm", Wrong("Choose a rule with sliding_window_buckets, which is nearly as exact.", "has the algorithm sliding_window_log, which stores every request")
	case !n.SpendsCredits():
		return "penalty", Wrong("Choose a rule without a penalty.", "has a penalty, which would begin before the credits are spent")
	case r.Consistency == Leased:
		return "consistency", Wrong("Choose a rule with the consistency strict.",
			"has the consistency leased: units that an instance has prefetched would count as used, and credits would be spent too early")
	case !r.countsBySubject():
		return "by", Wrong("Choose a rule that counts by subject.", "does not count by subject, so its limit is shared with other subjects")
	}
	return "", nil
}

func (r *Rule) countsBySubject() bool { return slices.Contains(r.By, "subject") }

// CheckCredits returns an error of the field if checks cannot spend credits beyond the limits of
// the rule.
func (r *Rule) CheckCredits(field string) (errs FieldErrors) {
	if _, p := r.creditsProblem(); p != nil {
		errs.Add(field, p)
	}
	return errs
}

// Purse is the credits of a subject for one rule in a call. Several counters of the call can share
// it, if the rule counts by more than the subject: they get units in their order, and the call is
// allowed only if the credits suffice for all of them. Its twin is lua/credits.lua: read_purse for
// Fill, cover_by_credits for cover, note_need for note, credits_retry for retryAt, and spend_purse
// for Pay.
//
// Example: a purse of 10 units, and two counters whose windows are full. A call costs 6 on each of
// them. The first counter spends 6 units. The second one needs 6 more, and there are 4, so the call
// is denied and nothing is spent.
type Purse struct {
	Grants   []PurseGrant // that are open, in the order in which they are spent
	Unopened int64        // units of grants that are not open, up to MaxBalance
	Balance  int64        // of the open grants, before the call, up to MaxBalance
	// Needed is the sum, up to MaxBalance, of what the counters need that have decided: what they
	// spend, or would have to spend. It is what an allowed call spends.
	Needed int64

	needs []need // of these counters
	least int64  // the sum, up to MaxBalance, of what they need when their windows are free
	free  int64  // when their windows have as much as the costs take of them
}

// need is a counter that needs credits.
type need struct {
	numbers *Numbers
	state   State
	cost    int64
}

// PurseGrant is what is left of a grant.
type PurseGrant struct {
	ID              GrantID
	Left, ExpiresMS int64
}

// Fill reads grants at an instant. spent returns how many units of a grant were spent, and false
// for a grant that is not open.
func (p *Purse) Fill(grants []Grant, now int64, spent func(GrantID) (int64, bool)) {
	*p = Purse{Grants: p.Grants[:0], needs: p.needs[:0]}
	for i := range grants {
		g := &grants[i]
		if g.ExpiresMS != 0 && g.ExpiresMS <= now {
			continue
		}
		units, open := spent(g.ID)
		if !open {
			p.Unopened = min(p.Unopened+g.Units, MaxBalance)
			continue
		}
		left := max(0, g.Units-units)
		p.Grants = append(p.Grants, PurseGrant{ID: g.ID, Left: left, ExpiresMS: g.ExpiresMS})
		p.Balance = min(p.Balance+left, MaxBalance)
	}
}

// cover returns the part of a cost that a counter spends: the units of the window come first. The
// window gets units up to the limit, also if its ceiling is higher.
func (p *Purse) cover(n *Numbers, remaining, cost int64) (spends int64) {
	left := max(0, n.Limit-(n.Ceiling()-remaining))
	return min(max(0, cost-left), max(0, p.Balance-p.Needed))
}

// note notes what a counter needs that has decided. What is missing counts, too: later counters of
// a denied call then have waits after which all of them fit.
func (p *Purse) note(n *Numbers, s State, remaining, cost, spends int64) {
	if units := max(spends, cost-remaining); units > 0 {
		p.Needed = min(p.Needed+units, MaxBalance)
		p.needs = append(p.needs, need{n, s, cost})
	}
}

// retryAt returns when a cost is allowed that is not allowed now, or NeverMS. The counters before
// it count with what they need now. If it never fits beside that, they count with what they need
// when their windows are free.
func (p *Purse) retryAt(n *Numbers, s State, cost, now int64) int64 {
	at := p.fitsAt(n, s, cost, now, p.Needed, now)
	if at == NeverMS && p.Needed > 0 {
		for _, o := range p.needs {
			p.least = min(p.least+max(0, o.cost-o.numbers.Limit), MaxBalance)
			p.free = max(p.free, o.state.when(o.numbers, now, max(0, o.numbers.Limit-o.cost)))
		}
		p.needs = p.needs[:0]
		at = p.fitsAt(n, s, cost, now, p.least, max(p.free, now+1))
	}
	if p.Unopened > 0 && (at == NeverMS || at > now+OpenedWithinMS) {
		return now + OpenedWithinMS
	}
	return at
}

// fitsAt returns when a cost fits, at the given instant or later, while others need units of the
// credits, or NeverMS. Grants expire while the window becomes free.
func (p *Purse) fitsAt(n *Numbers, s State, cost, now, others, from int64) int64 {
	balance := p.Balance - others
	for i := 0; ; i++ {
		if most := n.Ceiling() + balance - cost; most >= 0 && (balance >= 0 || others == 0) {
			t := from
			if most < n.Ceiling() { // else the credits pay all of it
				t = max(from, s.when(n, now, most))
			}
			if i == len(p.Grants) || p.Grants[i].ExpiresMS == 0 || t < p.Grants[i].ExpiresMS {
				return t
			}
		}
		if i == len(p.Grants) {
			return NeverMS
		}
		balance -= p.Grants[i].Left
	}
}

// Pay calls spend for each grant of which an allowed call spends units.
func (p *Purse) Pay(spend func(id GrantID, units int64)) {
	rest := p.Needed
	for i := range p.Grants {
		if part := min(rest, p.Grants[i].Left); part > 0 {
			spend(p.Grants[i].ID, part)
			rest -= part
		}
	}
}
