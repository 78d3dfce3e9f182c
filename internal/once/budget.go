package once

import "context"

// usualRecord is how many bytes a claim reserves. The size of the answer is known at the end.
const usualRecord = 1 << 10

// reserve reserves bytes for the record of a claim in Redis. The error is a *budget.FullError.
func (r *Records) reserve(claim *Claim) (err error) {
	if r.client == nil || r.away(claim.name) {
		return nil
	}
	claim.hold, err = r.budget.Reserve(claim.tenant, usualRecord)
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
