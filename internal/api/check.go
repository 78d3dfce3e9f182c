package api

import (
	"bytes"
	"net/http"
	"net/netip"
	"slices"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/places"
)

// httpQuestion is POST /v1/check, POST /check or POST /v1/check/batch over net/http, and the common
// part of leases.
type httpQuestion struct {
	r            *http.Request
	batch        bool
	keyless      bool // neither Weir-Denied-Status nor Idempotency-Key is for it
	deniedStatus int
	explains     bool // it has a place for explained checks
	held         int  // bytes of its answer that count, by the estimate; 0: none (holdLong)
}

func (q *httpQuestion) credentials() (string, *Problem) { return bearer(q.r.Header["Authorization"]) }

// read checks everything but the body, then reads the body.
func (q *httpQuestion) read(sc *scratch) (p *Problem) {
	request := requestFrom(q.r.Context())
	request.tenant = sc.tenant
	if q.r.URL.RawQuery != "" { // an ignored parameter must not look as if it had an effect
		if p = checkQuery(q.r.URL.RawQuery, nil); p != nil {
			return p
		}
	}
	if !q.keyless {
		if q.deniedStatus, p = deniedStatusOf(q.r.Header); p != nil {
			return p
		}
		if sc.idempotencyKey, p = checkKey(q.r.Header); p != nil {
			return p
		}
	}
	if p = jsonBody(q.r.Header); p != nil {
		return p
	}
	maxBody := maxCheckBody
	if q.batch {
		maxBody = maxBatchBody
	}
	if q.batch {
		if p = request.holdBody(q.r, sc.tenant, maxBody); p != nil {
			return p
		}
	}
	sc.share.hurry(request, q.r)
	sc.body, p = request.capacity.read(sc.share, q.r, sc.body, maxBody)
	return p
}

// turns are those of batches for a batch that is not longer than a check can be: it has short
// checks.
func (q *httpQuestion) turns(bodies *bodyTurns, sc *scratch) *places.Turns[limit.TenantID] {
	if q.batch && len(sc.body) <= maxCheckBody {
		return turnsFrom(bodies.batches, len(sc.body), smallBatch)
	}
	return turnsFrom(bodies.small, len(sc.body), largeCheck)
}

func (q *httpQuestion) decode(policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	if q.batch {
		if bytes.Contains(sc.body, explainName) { // a refusal costs less before the checks are decoded
			if p := q.holdExplained(policy.Tenant()); p != nil {
				return nil, p
			}
		}
		reqs, p := sc.decoder.decodeBatch(sc.body)
		if p == nil {
			p = q.boundExplained(policy.Tenant(), reqs)
		}
		if p == nil {
			p = q.holdLong(policy.Tenant(), answerBytes(policy, reqs))
		}
		return reqs, p
	}
	p := sc.decoder.decodeCheck(sc.body, &sc.checks[0])
	if p == nil && isLong(policy, &sc.checks[0]) {
		p = q.holdLong(policy.Tenant(), answerBytes(policy, sc.checks[:]))
	}
	return sc.checks[:], p
}

func (q *httpQuestion) caller() netip.Addr { return addressOf(q.r) }

func (q *httpQuestion) refuseResource(_ *scratch, resource string) *Problem {
	return wrongResource(resource)
}

func (q *httpQuestion) together() bool { return false }

func (q *httpQuestion) planField(i int) string {
	if q.batch {
		return "/checks/" + itoa(int64(i)) + "/plan"
	}
	return "/plan"
}

func (q *httpQuestion) encode(style HeaderStyle, decisions []check.Decision, sc *scratch) {
	sc.out = slices.Grow(sc.out[:0], q.held)
	if q.batch {
		sc.encodeBatch(decisions)
		return
	}
	sc.encodeCheck(style, &decisions[0])
}

// check answers POST /v1/check and POST /check.
func (s *server) check(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeCheck
	sc := scratches.get()
	sc.http = httpQuestion{r: r}
	decisions, p := s.decide(r.Context(), &sc.http, sc)
	if p != nil {
		sc.http.measured(sc.tenant, 0)
		scratches.put(sc)
		q.refuse(r, p)
		return
	}
	status := http.StatusOK
	if !decisions[0].Allowed {
		status = sc.http.deniedStatus
	}
	sc.headers.write(q.Header(), q.headers[1:])
	if sc.http.held > 0 {
		answer := sc.detach()
		scratches.put(sc)
		q.sendJSON(status, *answer)
		detached.put(answer)
		return
	}
	q.sendJSON(status, sc.out)
	scratches.put(sc) // not after a panic, because a pipeline may still use it
}

// checkBatch answers POST /v1/check/batch.
func (s *server) checkBatch(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeBatch
	sc := batchScratches.get()
	sc.http = httpQuestion{r: r, batch: true}
	if _, p := s.decide(r.Context(), &sc.http, sc); p != nil {
		sc.http.measured(sc.tenant, 0)
		batchScratches.put(sc)
		q.refuse(r, p)
		return
	}
	sc.headers.write(q.Header(), q.headers[1:])
	share, answer := sc.share, sc.detach()
	batchScratches.put(sc) // not after a panic, because a pipeline may still use it
	share.hold()           // an answer can be long, and its client slow
	q.sendJSON(http.StatusOK, *answer)
	share.done()
	detached.put(answer)
}

// deniedStatusOf reads the header with which a client requests denials with status 200, because its
// HTTP library retries a 429 by itself.
func deniedStatusOf(h http.Header) (int, *Problem) {
	values := h["Weir-Denied-Status"]
	switch {
	case len(values) == 0 || len(values) == 1 && values[0] == "429":
		return http.StatusTooManyRequests, nil
	case len(values) == 1 && values[0] == "200":
		return http.StatusOK, nil
	}
	return 0, invalidHeader("Weir-Denied-Status", limit.MustBe("200 or 429, once"))
}

// refuse answers a request without a decision.
func (q *request) refuse(r *http.Request, p *Problem) {
	q.code = p.Code
	writeProblem(q, r, p)
}

// sendJSON writes the whole answer.
func (q *request) sendJSON(status int, body []byte) {
	h := q.Header()
	h["Content-Type"] = jsonContentType
	h["Cache-Control"] = noStore
	if len(body) > 2000 { // net/http computes the length of shorter bodies itself
		h["Content-Length"] = []string{itoa(int64(len(body)))}
	}
	q.WriteHeader(status)
	_, _ = q.Write(body) // if this fails, the client has disconnected
}
