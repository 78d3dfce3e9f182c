package once

import (
	"context"

	"weir/internal/budget"
)

// recordSize returns how many bytes the record of a claim needs for an answer that has so many when
// it is compressed. Short ones are not.
func (r *Records) recordSize(claim *Claim, answer int) int64 {
	return budget.Size(len(claim.name), headBytes+r.aead.Overhead()+max(answer, packFrom))
}

// reserve reserves bytes for the record of a claim in Redis. The size of the answer is known at the
// end, so these are for the longest one. The error is a *budget.FullError.
func (r *Records) reserve(claim *Claim, answer int) (err error) {
	if r.client == nil || r.away(claim.name) {
		return nil
	}
	claim.hold, err = r.budget.Reserve(claim.tenant, r.recordSize(claim, answer))
	return err
}

// claimOrRead is claim, except that it creates no record if full is not nil. Then nil means that
// there is none.
func (r *Records) claimOrRead(ctx context.Context, claim *Claim, full error) ([]byte, error) {
	if full == nil {
		return r.claim(ctx, claim)
	}
	return r.ask(ctx, claim, func(ctx context.Context) (string, error) { return r.client.Get(ctx, claim.name).Result() })
}
