package engine

import (
	"errors"

	"weir/internal/limit"
)

// Refund returns the unused units of one lease to the counters that were charged.
type Refund struct {
	Parts []RefundPart // one for each counter, all of one tenant

	// NowMS is the time, for tests; 0: the store's clock.
	NowMS int64

	// Engine.Refund fills in the fields below.
	Refused int   // parts that changed nothing, because the state of their counter has changed
	Err     error // the counters could not be reached; some parts may have been applied
}

// RefundPart is the part of a Refund for one counter.
//
// A part changes nothing if the counter is no longer in the state that was charged, or has fewer
// units than the part returns. It creates no counter, makes no count negative and does not change
// the expiry. Units of a past window are still returned while that window has a weight in the
// current one.
type RefundPart struct {
	Key     string        // Counter.OwnKey
	ID      string        // Counter.ID
	Numbers limit.Numbers // Leasable
	Units   int64         // 1 and up
	// Ground identifies the state that was charged. For a fixed window it is the end of the window.
	// For a sliding window counter it is the number of the window, and for sub-buckets the number
	// of the sub-bucket. For a bucket it is the instant at which the bucket is full after the
	// charge (Verdict.ResetMS), which every later charge changes.
	Ground int64
	// Until is an instant for a bucket: up to then, later charges do not matter, because the bucket
	// was not full in the meantime and would not have been without the charged units. The bucket
	// stays used in part. 0: units are returned only if nothing was charged since.
	Until int64
	// ChargedMS is the instant at which the units were charged, by the store's clock; 0: unknown.
	// If the counter was scaled since (Amendment), the units are scaled too, and rounded down.
	ChargedMS int64
}

var (
	errRefund = errors.New("the units or numbers of a refund are out of range")
	errSlots  = errors.New("the counters of a refund belong to different tenants")
)

// Validate returns why an engine cannot apply the refund. It changes nothing.
func (r *Refund) Validate() error {
	for i := range r.Parts {
		part := &r.Parts[i]
		if !part.Numbers.Valid() || !part.Numbers.Leasable() || !part.Numbers.Refundable() ||
			part.Units < 1 || part.Units > limit.MaxFixedLimit || part.Ground < 0 || part.Ground > limit.MaxInstantMS ||
			part.ChargedMS < 0 || part.ChargedMS > limit.MaxInstantMS || part.Until < 0 || part.Until > limit.MaxInstantMS || r.NowMS < 0 || r.NowMS > limit.MaxInstantMS {
			return errRefund
		}
		if HashTag(part.Key) != HashTag(r.Parts[0].Key) {
			return errSlots
		}
	}
	return nil
}
