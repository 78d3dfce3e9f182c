package api

import (
	"sync"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
)

// scratch is the memory for answering one request of a hot endpoint, which the next request reuses.
// Nothing that outlives the request may point into it.
type scratch struct {
	body    []byte
	out     []byte // the answer's body
	wire    []byte // the complete answer of the lane
	decoder decoder
	headers headerWriter
	check   check.Scratch
	checks  [1]check.Request
	http    httpQuestion
	tenant  limit.TenantID
	share   *share // of the tenant
	// pause is how long the answer OVERLOADED should wait.
	pause time.Duration
	// idempotencyKey is the key of the request, set by read; "": none.
	idempotencyKey string
	decided        []check.Decision // of a replayed answer: only Allowed is set
	// refused is a denial by the question itself, before any rule; empty: none.
	refused   []check.Decision
	authorize authorizeQuestion
	route     route.Input
	envoy     envoyQuestion
	http2     http2Question
}

// Batches have their own pool, so that the memory of a batch is never used for a single check.
var (
	scratches      = scratchPool{most: 64 << 10}
	batchScratches = scratchPool{most: 512 << 10}
	envoyScratches = scratchPool{most: 64 << 10}
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

// put returns the memory to the pool, unless an unusual request has made it too large.
func (p *scratchPool) put(sc *scratch) {
	sc.idempotencyKey = ""
	sc.share, sc.pause = nil, 0
	sc.http2 = http2Question{}
	sc.http, sc.authorize, sc.refused = httpQuestion{}, authorizeQuestion{}, sc.refused[:0]
	sc.envoy.forget()
	if max(cap(sc.body), cap(sc.out), cap(sc.decoder.text), sc.check.Bytes(), sc.route.Bytes(), sc.envoy.input.Bytes()) <= p.most {
		sc.decoder.forget()
		sc.route.Reset()
		p.pool.Put(sc)
	}
}

// encodeCheck stores the answer to a single check in sc: the body in out, the rate-limit headers in
// headers.
func (sc *scratch) encodeCheck(style HeaderStyle, d *check.Decision) {
	sc.out = append(appendDecision(sc.out[:0], d), '\n')
	sc.headers.build(style, d)
}

// encodeBatch stores the answer to a batch in sc.
func (sc *scratch) encodeBatch(decisions []check.Decision) {
	sc.out = append(sc.out[:0], `{"results":[`...)
	for i := range decisions {
		if i > 0 {
			sc.out = append(sc.out, ',')
		}
		sc.out = appendDecision(sc.out, &decisions[i])
	}
	sc.out = append(sc.out, "]}\n"...)
	sc.headers.buildBatch(decisions)
}
