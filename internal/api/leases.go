package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"weir/internal/budget"
	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/leases"
	"weir/internal/limit"
)

const (
	leasesPath = "/v1/leases"
	returnPath = "/v1/leases/{lease}/return"
)

// Problems of the fields of a lease.
var (
	badUnits = limit.Wrong("Send a whole number from 1 to 1000000000000000, in digits alone.",
		"must be a whole number from 1 to 1000000000000000, written without sign, point or exponent")
	noUnits     = limit.Wrong("Send how many units to lease at most.", "is required: a whole number from 1 to 1000000000000000")
	badReported = limit.Wrong("Send a whole number from 0 to 1000000000000000, in digits alone.",
		"must be a whole number from 0 to 1000000000000000, written without sign, point or exponent")
)

// Seconds after which a client should ask for a lease again, if it got none.
const (
	notLeasableAgain = 10 // a rule must change first
	notNowAgain      = 1
)

// leaseQuestion is POST /v1/leases.
type leaseQuestion struct {
	httpQuestion
	status int
}

// leaseRecord is what is stored of a lease until it is returned. Attributes are those by which
// rules count, without their values.
type leaseRecord struct {
	Subject, Resource string
	Plan              string            `json:",omitempty"`
	Attributes        []check.Attribute `json:",omitempty"`
	Grant             engine.Grant
}

// Sizes of the parts of the longest record of a lease, in bytes, without the names in it.
const (
	leaseBytes          = 200
	leaseRuleBytes      = 300
	leaseAttributeBytes = 24
)

// leaseRecordBytes estimates the length of the record of a lease before it is granted, rather too
// large.
func leaseRecordBytes(policy *check.Policy, req *check.Request) int {
	rules, _ := policy.Matching(req.Resource)
	size := leaseBytes + len(req.Subject) + len(req.Resource) + len(req.Plan) + rules*leaseRuleBytes
	for i := range req.Attributes {
		size += leaseAttributeBytes + len(req.Attributes[i].Name)
	}
	return size
}

func (q *leaseQuestion) decode(_ *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	return sc.checks[:], sc.decoder.decodeLease(sc.body, &sc.checks[0])
}

// decodeLease decodes the body of POST /v1/leases into req, with the units as its cost.
func (d *decoder) decodeLease(body []byte, req *check.Request) *Problem {
	d.start(body)
	d.lease = true
	if p := d.open(); p != nil {
		return p
	}
	if p := d.check(req, 1); p != nil {
		return p
	}
	if p := d.end(); p != nil {
		return p
	}
	if d.fields.seen&fieldUnits == 0 {
		d.invalidField("units", noUnits)
	}
	return d.invalid()
}

// answer grants a lease when it is the tenant's turn. If the tenant has too many records, nothing
// is charged.
func (q *leaseQuestion) answer(ctx context.Context, s *server, policy *check.Policy, reqs []check.Request, sc *scratch) ([]check.Decision, *Problem) {
	leave, p := s.holdRecord(policy.Tenant(), sc)
	if p != nil {
		return nil, p
	}
	defer leave()
	hold, err := s.Budget.Reserve(policy.Tenant(), s.leases.Size(leaseRecordBytes(policy, &reqs[0])))
	if err != nil {
		return nil, problemOf(err)
	}
	defer hold.Cancel()
	var decisions []check.Decision
	if s.leases.Turn(ctx, policy.Tenant(), func() {
		// Not before the turn: a lease that gets none would count in the tenant's quota.
		if p = s.admitLease(ctx, policy, &reqs[0]); p == nil {
			decisions, p = q.grant(ctx, s, policy, reqs, &hold, sc)
		}
	}) != nil {
		return nil, s.crowded(sc)
	}
	return decisions, p
}

// admitLease takes a lease from the tenant's own quota.
func (s *server) admitLease(ctx context.Context, policy *check.Policy, req *check.Request) *Problem {
	if s.Quota == nil {
		return nil
	}
	if wait, ok := s.Quota.AdmitLease(ctx, policy, req); !ok {
		return overWork(wait)
	}
	if wait, ok := s.Quota.Admit(ctx, policy, 1); !ok {
		return overQuota(wait)
	}
	return nil
}

// grant charges units and stores the record of the lease.
func (q *leaseQuestion) grant(ctx context.Context, s *server, policy *check.Policy, reqs []check.Request, hold *budget.Hold, sc *scratch) ([]check.Decision, *Problem) {
	lease, err := s.Checker.Lease(ctx, policy, &reqs[0], &sc.check)
	if err != nil {
		return nil, leaseFailed(q, err)
	}
	sc.decided = append(sc.decided[:0], *lease.Decision)
	if !lease.Decision.Allowed {
		q.status = http.StatusTooManyRequests
		sc.encodeCheck(s.style, lease.Decision)
		return sc.decided, nil
	}
	id, err := s.keepLease(ctx, policy, &reqs[0], &lease, hold)
	if err != nil {
		return nil, leaseFailed(q, err)
	}
	q.status = http.StatusOK
	sc.encodeLease(s.style, id, &lease)
	return sc.decided, nil
}

// keepLease stores the record of a lease. If that fails, the units are returned at once.
func (s *server) keepLease(ctx context.Context, policy *check.Policy, req *check.Request, lease *check.Lease, hold *budget.Hold) (id string, err error) {
	record, err := json.Marshal(&leaseRecord{
		Subject: req.Subject, Resource: req.Resource, Plan: req.Plan, Attributes: policy.CountedAttributes(req), Grant: lease.Grant,
	})
	if err != nil { // only strings and numbers: cannot fail
		panic(err)
	}
	id = leases.NewID()
	hold.Wrote(s.leases.Size(len(record)), lease.Life+leases.Grace) // or may have been, if Put fails
	if err := s.leases.Put(ctx, policy.Tenant(), id, record, lease.Life); err != nil {
		var kept leaseRecord // its memory is not used again
		if json.Unmarshal(record, &kept) == nil {
			s.returnUnits(ctx, policy, &kept.Grant, lease.Units)
		}
		return "", err
	}
	return id, nil
}

// encodeLease stores the answer to a granted lease in sc.
func (sc *scratch) encodeLease(style HeaderStyle, id string, lease *check.Lease) {
	b := append(sc.out[:0], `{"lease":`...)
	b = appendString(b, id)
	b = append(b, `,"units":`...)
	b = strconv.AppendInt(b, lease.Units, 10)
	b = append(b, `,"expires_in_ms":`...)
	b = strconv.AppendInt(b, lease.Life.Milliseconds(), 10)
	b = append(b, `,"decision":`...)
	b = appendDecision(b, lease.Decision)
	sc.out = append(b, "}\n"...)
	sc.headers.build(style, lease.Decision)
}

// leaseFailed converts an error of a lease to a problem.
func leaseFailed(q question, err error) *Problem {
	var not *check.NotLeasableError
	switch {
	case errors.As(err, &not):
		return notLeasable(not)
	case errors.Is(err, check.ErrCountersUnavailable), errors.Is(err, leases.ErrUnavailable):
		p := newProblem(http.StatusServiceUnavailable, codeCountersUnavailable,
			"Redis did not answer, so no units were leased. Send each check: the on_unavailable of its rules applies.").withRetryAfter(1)
		p.cause = err
		return p
	}
	return checkFailed(q, err)
}

// notLeasable converts the error to a problem that names the rules.
func notLeasable(not *check.NotLeasableError) *Problem {
	detail, again := "A rule that matches these checks cannot be leased to a client; errors names them all. Send each check.", notLeasableAgain
	switch {
	case not.Rules == nil:
		detail, again = "Other requests took the units in the meantime. Send each check.", notNowAgain
	case not.Now:
		detail, again = "No units of a rule that matches these checks can be leased now; errors names it. Send each check.", notNowAgain
	}
	p := newProblem(http.StatusConflict, codeNotLeasable, detail).withRetryAfter(again)
	for _, r := range not.Rules {
		p.Errors = append(p.Errors, wrongField("rule:"+r.Rule, r.Reason))
	}
	return p
}

// grantLease answers POST /v1/leases.
func (s *server) grantLease(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeLeases
	sc := scratches.get()
	lease := &leaseQuestion{httpQuestion: httpQuestion{r: r, keyless: true}}
	if _, p := s.decide(r.Context(), lease, sc); p != nil {
		q.refuse(r, p)
	} else {
		sc.headers.write(q.Header(), q.headers[1:])
		q.sendJSON(lease.status, sc.out)
	}
	scratches.put(sc) // not after a panic, because a pipeline may still use it
}
