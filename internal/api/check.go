package api

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"weir/internal/check"
	"weir/internal/tenants"
)

// scratch is the memory that serving one check needs and the next one can use again. Nothing that
// outlives the request may point into it.
type scratch struct {
	body    []byte
	out     []byte
	wire    []byte // the lane's whole answer
	decoder decoder
	headers headerWriter
	room    check.Room
	checks  [1]check.Request
}

// Batches have a pool of their own, so that the memory of one never serves a single check.
var (
	scratches      = scratchPool{most: 64 << 10}
	batchScratches = scratchPool{most: 512 << 10}
)

type scratchPool struct {
	pool sync.Pool
	most int // bytes
}

func (p *scratchPool) get() *scratch {
	if sc, _ := p.pool.Get().(*scratch); sc != nil {
		return sc
	}
	return &scratch{body: make([]byte, 0, 1024), out: make([]byte, 0, 2048)}
}

// put gives the memory back, unless an unusual request has made it grow.
func (p *scratchPool) put(sc *scratch) {
	if max(cap(sc.body), cap(sc.out), cap(sc.decoder.text), sc.room.Bytes()) <= p.most {
		sc.decoder.forget()
		p.pool.Put(sc)
	}
}

// check answers POST /v1/check and POST /check.
func (s *server) check(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeCheck
	sc := scratches.get()
	defer scratches.put(sc)
	if p := s.answerCheck(q, r, sc); p != nil {
		q.code = p.Code
		writeProblem(w, r, p)
	}
}

// answerCheck answers a check, or returns why it cannot.
func (s *server) answerCheck(q *request, r *http.Request, sc *scratch) *Problem {
	deniedStatus, p := s.begin(q, r, sc, maxCheckBody)
	if p != nil {
		return p
	}
	req := sc.checks[:]
	if p := sc.decoder.decodeCheck(sc.body, &req[0]); p != nil {
		return p
	}
	decisions, p := s.decide(r.Context(), q.actor, req, &sc.room, false)
	if p != nil {
		return p
	}
	d := &decisions[0]
	sc.out = append(appendDecision(sc.out[:0], d), '\n')
	sc.headers.write(q.Header(), s.style, d, q.headers[1:])
	status := http.StatusOK
	if !d.Allowed {
		status = deniedStatus
	}
	q.sendJSON(status, sc.out)
	return nil
}

// checkBatch answers POST /v1/check/batch.
func (s *server) checkBatch(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeBatch
	sc := batchScratches.get()
	defer batchScratches.put(sc)
	if p := s.answerBatch(q, r, sc); p != nil {
		q.code = p.Code
		writeProblem(w, r, p)
	}
}

func (s *server) answerBatch(q *request, r *http.Request, sc *scratch) *Problem {
	if _, p := s.begin(q, r, sc, maxBatchBody); p != nil {
		return p
	}
	reqs, p := sc.decoder.decodeBatch(sc.body)
	if p != nil {
		return p
	}
	decisions, p := s.decide(r.Context(), q.actor, reqs, &sc.room, true)
	if p != nil {
		return p
	}
	sc.out = append(sc.out[:0], `{"results":[`...)
	for i := range decisions {
		if i > 0 {
			sc.out = append(sc.out, ',')
		}
		sc.out = appendDecision(sc.out, &decisions[i])
	}
	sc.out = append(sc.out, "]}\n"...)
	q.sendJSON(http.StatusOK, sc.out)
	return nil
}

// begin does what comes before reading what is asked: who asks, may they, in what form. It leaves the
// body in sc.body and returns the status for a denial.
func (s *server) begin(q *request, r *http.Request, sc *scratch, maxBody int) (deniedStatus int, p *Problem) {
	if p = authenticateRequest(s.Authenticator, q, r); p != nil {
		return 0, p
	}
	if p = lackingScope(q.actor, tenants.ScopeCheck); p != nil {
		return 0, p
	}
	if q.actor.Operator() { // whose tenant limits the others: a check there would look like no limits at all
		return 0, newProblem(http.StatusForbidden, codeInsufficientScope, "A key of the operator asks no checks. Use a key of the tenant whose customers are to be limited.")
	}
	if r.URL.RawQuery != "" { // what is not read must not look as if it were
		if p = checkQuery(r.URL.RawQuery, nil); p != nil {
			return 0, p
		}
	}
	if deniedStatus, p = deniedStatusOf(r.Header); p != nil {
		return 0, p
	}
	if p = jsonBody(r.Header); p != nil {
		return 0, p
	}
	sc.body, p = readBody(r, sc.body, maxBody)
	return deniedStatus, p
}

// deniedStatusOf reads the header by which a client whose HTTP library repeats a 429 by itself asks
// for denials with status 200.
func deniedStatusOf(h http.Header) (int, *Problem) {
	values := h["Weir-Denied-Status"]
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "429":
		return http.StatusTooManyRequests, nil
	case len(values) == 1 && values[0] == "200":
		return http.StatusOK, nil
	}
	return 0, invalidHeader("Weir-Denied-Status", "must be 200 or 429, once")
}

// decide takes checks to the actor's policy and on to the counters.
func (s *server) decide(ctx context.Context, actor tenants.Actor, reqs []check.Request, room *check.Room, batch bool) ([]check.Decision, *Problem) {
	policy, err := s.Policies.Get(ctx, actor.TenantID())
	if err != nil {
		return nil, policyUnavailable(err)
	}
	if s.Quota != nil {
		if wait, ok := s.Quota.Admit(ctx, policy, int64(len(reqs))); !ok {
			return nil, overQuota(wait)
		}
	}
	decisions, err := s.Checker.CheckIn(ctx, policy, reqs, room)
	if err == nil {
		return decisions, nil
	}
	var unknown *check.UnknownPlanError
	if !errors.As(err, &unknown) {
		return nil, problemOf(err)
	}
	pointer := "/plan"
	if batch {
		pointer = "/checks/" + itoa(int64(unknown.Index)) + pointer
	}
	return nil, unknownPlan(ProblemField{Pointer: pointer, Message: planMessage})
}

// policyUnavailable is the answer while a tenant's rules cannot be had. The tenant of a valid key
// exists, so a source that does not know it (any more) is behind or ahead of the key by a moment.
func policyUnavailable(err error) *Problem {
	p := newProblem(http.StatusServiceUnavailable, codePolicyUnavailable, "The tenant's rules are not loaded, and cannot be loaded now.").withRetryAfter(1)
	p.cause = err
	return p
}

// overQuota is the answer to a tenant that has used up its own quota. It is no decision: nothing was
// decided about the subject.
func overQuota(retryAfterMS int64) *Problem {
	p := newProblem(http.StatusTooManyRequests, codeTenantQuotaExceeded, "The tenant has used up its quota of checks.")
	if retryAfterMS == check.NeverMS {
		return p
	}
	return p.withRetryAfter(int(max(1, ceilSeconds(retryAfterMS))))
}

// sendJSON writes the whole answer.
func (q *request) sendJSON(status int, body []byte) {
	h := q.Header()
	h["Content-Type"] = jsonContentType
	h["Cache-Control"] = noStore
	if len(body) > 2000 { // net/http finds the length of less by itself
		h["Content-Length"] = []string{itoa(int64(len(body)))}
	}
	q.WriteHeader(status)
	_, _ = q.Write(body) // the client is gone if this fails; nobody is left to tell
}
