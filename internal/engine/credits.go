package engine

import (
	"context"
	"errors"
	"sync/atomic"

	"weir/internal/limit"
)

// Credits are the prepaid units of a subject for a rule. They never change: another grant makes
// other Credits, and thereby another call.
type Credits struct {
	Key    string        // of what was spent of them, with the hash tag of the counter
	Outbox string        // of the tenant, with the same hash tag
	Grants []limit.Grant // in the order in which they are spent
	spent  atomic.Bool
}

// At returns the credits with keys that have the hash tag of a counter's key: c itself, unless the
// tenant has several tags. nil stays nil.
func (c *Credits) At(key string) *Credits {
	if c == nil || HashTag(c.Key) == HashTag(key) {
		return c
	}
	there := &Credits{Key: Retag(c.Key, key), Outbox: Retag(c.Outbox, key), Grants: c.Grants}
	there.spent.Store(c.spent.Load())
	return there
}

// CreditsAt returns which counter of a call has the credits that counter i spends: the first one
// whose credits have the same key. Counter i must have credits. A rule that counts by more than the
// subject has several counters in one call that spend the same credits. What another one knows of
// them may be older, so those of the first one count for all.
func CreditsAt(counters []Counter, i int) int {
	own := counters[i].Credits
	for j := range counters[:i] {
		if o := counters[j].Credits; o != nil && (o == own || o.Key == own.Key) {
			return j
		}
	}
	return i
}

// MarkSpent notes that nothing is left of them. What was spent is never returned.
func (c *Credits) MarkSpent() { c.spent.Store(true) }

// Over reports whether nothing can be left of them at an instant.
func (c *Credits) Over(nowMS int64) bool {
	if c.spent.Load() {
		return true
	}
	for i := range c.Grants {
		if at := c.Grants[i].ExpiresMS; at == 0 || nowMS < at+expiredForMS {
			return false
		}
	}
	return true
}

// expiredForMS is how long a grant must have expired by the clock of an instance, which can differ
// from that of the store.
const expiredForMS = 60_000

// Opening is what Postgres has of the grants of one subject for one rule.
type Opening struct {
	Key, Outbox string // as in Credits
	Grants      []limit.Spent
	// Whole means that nothing is left of any other grant: such grants are forgotten if there are
	// more than limit.MostKeptGrants. Otherwise a subject that gets and spends grants for years
	// would make each of its checks longer.
	Whole bool
	// AskedUS is an instant before that of which the grants are, and ReadUS one behind it, in
	// microseconds by the clock of Postgres. An opening that may be older than the last one opens
	// and removes nothing, so no grant is opened again with less than was spent of it.
	AskedUS, ReadUS int64

	Err error // the result of OpenCredits
}

// SteppedUS is how far the clock of openings must have stepped back for an opening that seems to be
// so much older than the last one not to count as older. None waits as long on its way.
const SteppedUS int64 = 600_000_000

// ErrOpenedSince means that an opening may be older than the last one. Read the grants again.
var ErrOpenedSince = errors.New("the credits have been opened since they were read")

// CreditStore has what was spent of grants. Evaluate spends them; the store of the grants itself is
// elsewhere, and learns the totals from the outbox.
type CreditStore interface {
	// OpenCredits says what was spent of grants, so that they can be spent. Totals that are known
	// already are never reduced. It returns how many grants were not open, or had a smaller total.
	// An opening that fails does not stop the others, nor does a server that does not answer.
	// Error, also for each opening as its Err: ErrOpenedSince if nothing else failed, and then some
	// grants still are not open.
	OpenCredits(ctx context.Context, openings ...*Opening) (opened int, err error)
	// CloseCredits makes all grants with the keys of openings unspendable, until they are opened
	// with these keys again, and raises the totals of the openings, which must have grants, to what
	// was spent with these keys and may not be in Postgres. Error, for each opening:
	// ErrOpenedSince.
	CloseCredits(ctx context.Context, openings ...*Opening) []error
	// SpentCredits returns totals that are not settled, for each outbox at most some, or the error
	// for this outbox.
	SpentCredits(ctx context.Context, outboxes []string, most int) ([][]limit.Spent, []error)
	// SettleCredits forgets totals, except those that have changed since.
	SettleCredits(ctx context.Context, outbox string, totals []limit.Spent) error
}

func (c *Credits) valid(n *limit.Numbers) bool {
	return n.SpendsCredits() && len(c.Grants) <= limit.MaxGrants && HashTag(c.Key) == HashTag(c.Outbox)
}
