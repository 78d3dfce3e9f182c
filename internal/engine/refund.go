package engine

import (
	"errors"

	"weir/internal/limit"
)

// Refund is units of one lease that nobody was given, on their way back to the counters that
// they were charged to.
type Refund struct {
	Parts []RefundPart // one for each counter, all of one tenant

	// Filled in by Engine.Refund.
	Refused int   // parts that changed nothing, because their counter has moved on
	Err     error // the counters could not be reached: some parts may have been taken back
}

// RefundPart is what goes back to one counter.
//
// A part changes nothing where the counter is not in the state that was charged any more, or holds
// less than would go back: it creates no counter, brings none below zero, and leaves the expiry as
// it is. What was counted of a window that is over by now still goes back as long as it weighs
// on the present one.
type RefundPart struct {
	Key     string        // Counter.OwnKey
	ID      string        // Counter.ID
	Numbers limit.Numbers // Leasable
	Units   int64         // 1 and up
	// Ground tells the state that was charged: of a fixed window its end; of a sliding window
	// counter the number of the window; of sub-buckets the number of the one; of a bucket the
	// instant of being whole as the charge left it (Verdict.ResetMS), which every later charge
	// moves.
	Ground int64
}

var (
	errRefund = errors.New("nothing of a refund can go back: its units or numbers are out of range")
	errSlots  = errors.New("a refund of counters of different tenants")
)

// validate returns why an engine cannot take the refund, before it touches anything.
func (r *Refund) Validate() error {
	for i := range r.Parts {
		part := &r.Parts[i]
		if !part.Numbers.Valid() || !part.Numbers.Leasable() || !part.Numbers.Refundable() ||
			part.Units < 1 || part.Units > limit.MaxFixedLimit || part.Ground < 0 || part.Ground > limit.MaxInstantMS {
			return errRefund
		}
		if HashTag(part.Key) != HashTag(r.Parts[0].Key) {
			return errSlots
		}
	}
	return nil
}
