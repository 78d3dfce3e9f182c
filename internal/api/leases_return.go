package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/leases"
	"weir/internal/limit"
)

// returnQuestion is POST /v1/leases/{lease}/return.
type returnQuestion struct {
	httpQuestion
	id   string
	body leaseReturn
}

// leaseReturn is the body of a return.
type leaseReturn struct {
	units       int64 // that were not granted
	allowed     int64 // checks
	denied      int64
	deniedUnits int64
}

// mostReported is how many allowed and how many denied checks of one return count. A client decides
// fewer until its lease ends, in ten seconds at most. Without this bound, a few thousand returns
// would exceed what the sums of usage can hold.
const mostReported = 1_000_000_000

// Names of the fields of leaseReturn.
var returnFieldNames = []string{"units", "allowed", "denied", "denied_units"}

// field returns the field with a name, or nil.
func (l *leaseReturn) field(name []byte) *int64 {
	switch string(name) {
	case "units":
		return &l.units
	case "allowed":
		return &l.allowed
	case "denied":
		return &l.denied
	case "denied_units":
		return &l.deniedUnits
	}
	return nil
}

// Problems of the fields of a return.
var (
	noReturned  = limit.Wrong("Send the units that the client did not use, or 0.", "is required: the units that were not used")
	moreThanHad = limit.Wrong("Send at most the units of the lease.", "is greater than the units of the lease")
	moreChecks  = limit.Wrong("Send at most one check for each used unit.", "is greater than the units that were used")
	fewerUnits  = limit.Wrong("Send the sum of the costs of the denied checks.", "must be at least denied")
)

// decode reads the body. A return has no checks.
func (q *returnQuestion) decode(_ *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	return nil, sc.decoder.decodeReturn(sc.body, &q.body)
}

func (d *decoder) decodeReturn(body []byte, to *leaseReturn) *Problem {
	d.start(body)
	if p := d.open(); p != nil {
		return p
	}
	d.pos++ // {
	seen := map[*int64]bool{}
	for first := true; ; first = false {
		name, done, p := d.member(first)
		if p != nil {
			return p
		}
		if done {
			break
		}
		field := to.field(name)
		switch {
		case field == nil:
			return d.unknownField(name, returnFieldNames)
		case seen[field]:
			return d.duplicateField(name)
		}
		seen[field] = true
		if *field, p = d.number64(string(name), badReported, 1); p != nil {
			return p
		}
	}
	if p := d.end(); p != nil {
		return p
	}
	if !seen[&to.units] {
		d.invalidField("units", noReturned)
	}
	if d.errs == nil && to.deniedUnits < to.denied {
		d.invalidField("denied_units", fewerUnits)
	}
	return d.invalid()
}

// answer returns a lease when it is the tenant's turn.
func (q *returnQuestion) answer(ctx context.Context, s *server, policy *check.Policy, _ []check.Request, sc *scratch) ([]check.Decision, *Problem) {
	leave, p := s.holdRecord(policy.Tenant(), sc)
	if p != nil {
		return nil, p
	}
	defer leave()
	token := leases.NewToken()
	if s.leases.Turn(ctx, policy.Tenant(), func() { p = q.giveBack(ctx, s, policy, token, sc) }) != nil {
		return nil, s.crowded(sc)
	}
	return nil, p
}

// giveBack returns units and reports checks, once for each lease.
func (q *returnQuestion) giveBack(ctx context.Context, s *server, policy *check.Policy, token leases.Token, sc *scratch) *Problem {
	record, err := s.takeLease(ctx, policy, q.id, token)
	if errors.Is(err, leases.ErrUnavailable) {
		s.completeReturn(policy, q.id, q.body, token)
	}
	switch {
	case err == nil:
		if p := q.body.exceeds(record); p != nil {
			s.reportLease(policy, record, &leaseReturn{}, sc)
			return p
		}
		s.settleLease(ctx, policy, record, &q.body, sc)
		return nil
	case !errors.Is(err, leases.ErrUnknown) && !errors.Is(err, leases.ErrTaken):
		return leaseFailed(q, err)
	}
	// A return that changes nothing is work for Redis, too, so it counts as a check. Others do not,
	// because their lease did, and what they report must not be lost.
	if s.Quota != nil {
		if wait, ok := s.Quota.Admit(ctx, policy, 1); !ok {
			return overQuota(wait)
		}
	}
	if errors.Is(err, leases.ErrTaken) {
		return nil
	}
	return newProblem(http.StatusNotFound, codeNotFound, "The tenant has no such lease, or it ended more than 10 seconds ago.")
}

// completeReturn makes a return that Redis did not answer, as soon as it does. The lease may be
// taken already: then a repeat by the client changes nothing. Or Redis is known to be unavailable,
// and the client may give up before it is back. If a repeat was faster, this changes nothing.
func (s *server) completeReturn(policy *check.Policy, id string, body leaseReturn, token leases.Token) {
	var taken *leaseRecord
	s.late.complete(policy.Tenant(), func(ctx context.Context) error {
		if taken != nil {
			return s.tryUnits(ctx, &taken.Grant, body.units)
		}
		err := leases.ErrUnavailable // if the tenant has no turn
		_ = s.leases.Turn(ctx, policy.Tenant(), func() { taken, err = s.takeLease(ctx, policy, id, token) })
		if err != nil {
			return err
		}
		sc := scratches.get()
		if body.exceeds(taken) != nil {
			s.reportLease(policy, taken, &leaseReturn{}, sc)
			scratches.put(sc)
			return nil
		}
		s.reportLease(policy, taken, &body, sc)
		scratches.put(sc)
		return s.tryUnits(ctx, &taken.Grant, body.units)
	})
}

func (s *server) takeLease(ctx context.Context, policy *check.Policy, id string, token leases.Token) (*leaseRecord, error) {
	stored, err := s.leases.Take(ctx, policy.Tenant(), id, token)
	if err != nil {
		return nil, err
	}
	record := &leaseRecord{}
	if err := json.Unmarshal(stored, record); err != nil {
		return nil, errors.Join(leases.ErrUnknown, err)
	}
	return record, nil
}

// exceeds returns the problem of a return of more than the lease had. The lease is then over, and
// nothing of it is returned: all of its units were used.
func (l *leaseReturn) exceeds(record *leaseRecord) *Problem {
	switch used := record.Grant.Units - l.units; {
	case used < 0:
		return invalid(wrongField("/units", moreThanHad))
	case l.allowed > used:
		return invalid(wrongField("/allowed", moreChecks))
	}
	return nil
}

// settleLease returns the units of a lease and reports its checks.
func (s *server) settleLease(ctx context.Context, policy *check.Policy, record *leaseRecord, l *leaseReturn, sc *scratch) {
	s.returnUnits(ctx, policy, &record.Grant, l.units)
	s.reportLease(policy, record, l, sc)
}

// returnUnits returns units of a grant. If Redis fails meanwhile, they count until their window
// ends. If it certainly does not know of them, for example because the circuit of their server is
// not closed yet, they are returned later. The memory of the grant must not be used again.
func (s *server) returnUnits(ctx context.Context, policy *check.Policy, g *engine.Grant, units int64) {
	switch err := s.tryUnits(ctx, g, units); {
	case errors.Is(err, leases.ErrUnavailable):
		s.late.complete(policy.Tenant(), func(ctx context.Context) error { return s.tryUnits(ctx, g, units) })
	case err != nil:
		s.late.lose(err)
	}
}

// tryUnits returns units of a grant. The error is leases.ErrUnavailable if it can be repeated.
func (s *server) tryUnits(ctx context.Context, g *engine.Grant, units int64) error {
	err := s.Checker.ReturnLease(ctx, g, units)
	if engine.NotCounted(err) {
		return fmt.Errorf("%w: %w", leases.ErrUnavailable, err)
	}
	return err
}

// reportLease reports the checks of a lease. Units that are not returned were used, and are
// metered, also if the client does not say by how many checks: then they count as one.
func (s *server) reportLease(policy *check.Policy, record *leaseRecord, l *leaseReturn, sc *scratch) {
	used := record.Grant.Units - l.units
	s.Checker.Report(policy, check.Request{
		Subject: record.Subject, Resource: record.Resource, Plan: record.Plan, Attributes: record.Attributes,
	}, check.Reported{
		Allowed: max(min(l.allowed, mostReported), min(used, 1)), AllowedUnits: used,
		Denied: min(l.denied, mostReported), DeniedUnits: l.deniedUnits,
	}, &sc.check)
}

// returnLease answers POST /v1/leases/{lease}/return.
func (s *server) returnLease(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeReturn
	sc := scratches.get()
	ret := &returnQuestion{httpQuestion: httpQuestion{r: r, keyless: true}, id: chi.URLParam(r, "lease")}
	if _, p := s.decide(r.Context(), ret, sc); p != nil {
		q.refuse(r, p)
	} else {
		q.Header()["Cache-Control"] = noStore
		q.WriteHeader(http.StatusNoContent)
	}
	scratches.put(sc) // not after a panic, because a pipeline may still use it
}
