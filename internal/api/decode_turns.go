package api

import (
	"context"

	"weir/internal/check"
)

// A check is decoded in some microseconds, before any quota: only the decoded check says how much
// it takes. A batch of 256 KiB, or a head of 16 KiB that a route reads for 24 sources and compares
// with 100 templates in several ways, takes up to some milliseconds. A tenant that sends many of
// these at once would keep all processors from the checks of others. So batches that are longer
// than any check, and checks, messages and what a route reads of more than largeCheck, are decoded
// on at most half of the processors, in turn of tenants, as the bodies of the admin API are.

// largeCheck is the length of the body of a check, of a head for a route, or of a message of Envoy,
// in bytes. A check with 16 attributes of a usual length has less than 1 KiB.
const largeCheck = 4 << 10

// decodeInTurn decodes a request, in a turn of its tenant if it is large.
func (s *server) decodeInTurn(ctx context.Context, q question, policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	if !q.large(sc) {
		return q.decode(policy, sc)
	}
	ctx, cancel := context.WithTimeout(ctx, s.capacity.bodies.wait)
	defer cancel()
	leave, p := s.capacity.turn(ctx, s.capacity.bodies.small, sc.tenant)
	if p != nil {
		return nil, p
	}
	defer leave()
	return q.decode(policy, sc)
}
