package api

import (
	"slices"
	"sync"

	"weir/internal/check"
	"weir/internal/limit"
)

// The answer to a batch of 100 checks with 32 rules each has 900 kB, and that to an explained check
// of a tenant with 1000 rules 115 kB. A client that does not read keeps it in memory until the
// write timeout, so the bytes of long answers are limited by tenant: from before anything is
// counted, when their length is an estimate, until they are sent. A tenant has 64 MiB of them, so
// 64 of the largest batches may be in progress at once.
//
// Nothing else of such a request is kept while its answer is sent: the memory that decided it is
// used by other requests.
const (
	// longCheck is the length, in bytes, from which on an answer counts. Answers to other checks
	// have at most about as much.
	longCheck     = 16 << 10
	maxLong       = 256 << 20
	maxTenantLong = 64 << 20
)

// Sizes of the parts of an answer in bytes, with some room.
const (
	decisionBytes = 320 // without the subject, the resource and the rules
	ruleBytes     = 220 // without the slug
	skippedBytes  = 110 // with the longest slug
)

// answerBytes estimates the length of the answer to checks.
func answerBytes(policy *check.Policy, reqs []check.Request) (size int) {
	resource, ofRules := "", 0
	for i := range reqs {
		r := &reqs[i]
		if i == 0 || r.Resource != resource {
			rules, slugs := policy.Matching(r.Resource)
			resource, ofRules = r.Resource, rules*ruleBytes+slugs
		}
		size += decisionBytes + len(r.Subject) + len(r.Resource) + ofRules
		if r.Explain {
			size += policy.Rules() * skippedBytes
		}
	}
	return size
}

// Sizes of the parts of a stored answer in bytes, which is compressed (package once): measured with
// numbers of 8 random digits, which take up to 220 bytes, 23 for a decision and 27 for a rule.
const (
	recordHeadBytes     = 640 // with headers
	recordDecisionBytes = 40
	recordRuleBytes     = 28
)

// recordBytes estimates the size of the stored answer to checks, rather too large: names are not
// repeated, and so not shorter. A long list of rules that do not count is not stored.
func recordBytes(policy *check.Policy, reqs []check.Request) int {
	resource, rules, slugs := "", 0, 0
	size, explained := recordHeadBytes, 0
	for i := range reqs {
		r := &reqs[i]
		if i == 0 || r.Resource != resource {
			resource = r.Resource
			rules, slugs = policy.Matching(resource)
			size += len(resource) + slugs
		}
		size += recordDecisionBytes + len(r.Subject) + rules*recordRuleBytes
		if r.Explain {
			explained += policy.Rules() * skippedBytes
		}
	}
	return size + min(explained, maxExplainedRecord)
}

// isLong reports whether the answer to a single check is long. Only an explained one can be.
func isLong(policy *check.Policy, r *check.Request) bool {
	return r.Explain && decisionBytes+policy.Rules()*skippedBytes > longCheck
}

// notDirect is why a check with a long answer is not answered directly on the connection: net/http
// answers it. No client sees this.
var notDirect = newProblem(500, codeInternal, "The answer is long.")

// decodeDirect decodes a check that is to be answered directly on the connection.
func (sc *scratch) decodeDirect(policy *check.Policy, body []byte) ([]check.Request, *Problem) {
	p := sc.decoder.decodeCheck(body, &sc.checks[0])
	if p == nil && isLong(policy, &sc.checks[0]) {
		p = notDirect
	}
	return sc.checks[:], p
}

// holdLong counts a long answer of so many bytes until it is sent, or refuses the request.
func (q *httpQuestion) holdLong(tenant limit.TenantID, size int) *Problem {
	if size <= longCheck {
		return nil
	}
	request := requestFrom(q.r.Context())
	leave, ok := request.capacity.long.Take(tenant, size)
	if !ok {
		request.capacity.refuse()
		return tooManyUnread()
	}
	request.atEnd(leave)
	q.held = size
	return nil
}

// holdReplay counts a stored answer that is long. The estimate is by the rules of now, and the
// answer may be by more.
func (sc *scratch) holdReplay(tenant limit.TenantID, q question, size int) *Problem {
	if q != question(&sc.http) || sc.http.held > 0 {
		return nil
	}
	return sc.http.holdLong(tenant, size)
}

// measured replaces the estimate of a long answer by its length.
func (q *httpQuestion) measured(tenant limit.TenantID, size int) {
	if q.held > 0 {
		request := requestFrom(q.r.Context())
		request.atEnd(request.capacity.long.Hold(tenant, size-q.held))
	}
}

// bufferPool has buffers for answers that are being sent. They are not in the memory of a request,
// which other requests use meanwhile.
type bufferPool struct {
	pool sync.Pool // of *[]byte
	most int       // bytes of a buffer that is kept
}

// The bodies of batches, and complete answers of the lane, which are shorter.
var (
	detached = bufferPool{most: 64 << 10}
	wires    = bufferPool{most: longCheck}
)

// take takes the buffer from its owner, who gets another one. The caller calls put when it is sent.
func (p *bufferPool) take(owner *[]byte) *[]byte {
	buffer, _ := p.pool.Get().(*[]byte)
	if buffer == nil {
		b := make([]byte, 0, 2048)
		buffer = &b
	}
	*buffer, *owner = *owner, (*buffer)[:0]
	return buffer
}

func (p *bufferPool) put(buffer *[]byte) {
	if cap(*buffer) <= p.most {
		p.pool.Put(buffer)
	}
}

// detach takes the answer out of sc, for detached.put when it is sent. An answer that does not
// count is not in a buffer that is much longer.
func (sc *scratch) detach() *[]byte {
	answer := detached.take(&sc.out)
	if sc.http.held == 0 && cap(*answer) > 2*longCheck {
		*answer = slices.Clone(*answer)
	}
	sc.http.measured(sc.tenant, cap(*answer))
	return answer
}
