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

// Purse is the credits of one counter in a call. Its twin is lua/credits.lua: read_credits for
// Fill, cover_by_credits for cover, credits_retry for retryAt, and spend_credits for Pay.
type Purse struct {
	Grants   []PurseGrant // that are open, in the order in which they are spent
	Unopened int64        // units of grants that are not open, up to MaxBalance
	Balance  int64        // of the open grants, before the call, up to MaxBalance
	Spends   int64        // by the call, if it is allowed
}

// PurseGrant is what is left of a grant.
type PurseGrant struct {
	ID              GrantID
	Left, ExpiresMS int64
}

// Fill reads grants at an instant. spent returns how many units of a grant were spent, and false
// for a grant that is not open.
func (p *Purse) Fill(grants []Grant, now int64, spent func(GrantID) (int64, bool)) {
	*p = Purse{Grants: p.Grants[:0]}
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

// cover divides a cost: the units of the window come first. It returns the part for the window,
// which gets units up to the limit, also if its ceiling is higher.
func (p *Purse) cover(n *Numbers, remaining, cost int64) (takes int64) {
	left := max(0, n.Limit-(n.Ceiling()-remaining))
	p.Spends = min(max(0, cost-left), p.Balance)
	return cost - p.Spends
}

// retryAt returns when a cost is allowed that is not allowed now, or NeverMS. Grants expire while
// the window becomes free.
func (p *Purse) retryAt(n *Numbers, s State, cost, now int64) int64 {
	at, balance := NeverMS, p.Balance
	for i := 0; ; i++ {
		if most := n.Ceiling() + balance - cost; most >= 0 {
			t := s.when(n, now, most)
			if i == len(p.Grants) || p.Grants[i].ExpiresMS == 0 || t < p.Grants[i].ExpiresMS {
				at = t
				break
			}
		}
		if i == len(p.Grants) {
			break
		}
		balance -= p.Grants[i].Left
	}
	if p.Unopened > 0 && (at == NeverMS || at > now+OpenedWithinMS) {
		return now + OpenedWithinMS
	}
	return at
}

// Pay calls spend for each grant of which the call spends units.
func (p *Purse) Pay(spend func(id GrantID, units int64)) {
	rest := p.Spends
	for i := range p.Grants {
		if part := min(rest, p.Grants[i].Left); part > 0 {
			spend(p.Grants[i].ID, part)
			rest -= part
		}
	}
}
