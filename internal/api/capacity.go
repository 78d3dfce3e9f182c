package api

import (
	"hash/maphash"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/places"
)

// capacity limits concurrent work, so that no client can block the others: all requests together,
// and for each tenant the requests being served and the bodies being read. A request whose body has
// not arrived is not being served. It takes memory, but no other request waits for it.
//
// The bound of all requests adapts to the time for which they wait (package overload). With a bound
// of 10 000, a tenant has at most 5 000 requests being served, and at most 2 500 whose bodies have
// not arrived. A client that opens 10 000 HTTP/2 streams and sends no body gets 503 for 7 500 of
// them, and other clients are not affected. A tenant whose checks wait for Redis because of its own
// other checks is served fewer at once.
//
// Requests that are no checks take longer, because most of them wait for Postgres. A tenant has at
// most 64 requests to the admin API in flight. Clients without a key have at most 64 of each kind
// together, those of one network 32, and those of one site 48: clients who use up the places for
// documents do not affect device logins.
//
// A request whose answer has begun uses none of these places, because its client may never read the
// answer. Batches and requests to the admin API still count for their tenant until they end.
type capacity struct {
	inFlight *atomic.Int64
	bound    *overload.Bound
	shed     prometheus.Counter
	seed     maphash.Seed
	shares   [shareCells]share

	devices, docs keyless
	arriving      keyless // bodies of requests without a key: see readKeyless
	webhooks      keyless // webhooks that wait for the lookup of their endpoint: see takeWaiting

	bodies bodyTurns
	// explained are the places for batches with explained checks until their answers are sent.
	explained *places.Places[limit.TenantID]
	// long are the bytes of long answers to checks until they are sent: see holdLong.
	long *places.Bytes[limit.TenantID]
	// records are the places for requests that use records in Redis: see holdRecord.
	records *places.Places[limit.TenantID]
}

// keyless are the places for one kind of requests without a key, by network. The bound says how
// many there are.
type keyless = *places.Nested[netip.Prefix]

// The shares of tenants are in cells, by a hash with a random seed. Two tenants in the same cell
// share one share, on one instance, until it restarts.
const shareCells = 4096

// share counts the requests of one tenant.
type share struct {
	serving, reading, admin atomic.Int64
	_                       [40]byte // a cache line each
}

func newCapacity(metrics *Metrics, bound *overload.Bound, processors *places.Processors) *capacity {
	processors.Batches.LeaveOneWhile(bound.Several)
	return &capacity{
		inFlight: &metrics.inFlight, bound: bound, shed: metrics.shed, seed: maphash.MakeSeed(),
		webhooks: places.NewNested[netip.Prefix](), devices: places.NewNested[netip.Prefix](), docs: places.NewNested[netip.Prefix](),
		arriving: places.NewNested[netip.Prefix](),
		bodies:   newBodyTurns(processors), explained: places.New[limit.TenantID](maxExplainedBatches, maxTenantExplained),
		long:    places.NewBytes[limit.TenantID](maxLong, maxTenantLong),
		records: places.New[limit.TenantID](0, 0),
	}
}

// of returns the share of a tenant.
func (a *capacity) of(tenant limit.TenantID) *share {
	return &a.shares[maphash.Bytes(a.seed, tenant[:])%shareCells]
}

// enter starts to serve a request of any tenant, or returns false. leave must follow in either
// case.
func (a *capacity) enter() bool { return a.inFlight.Add(1) <= a.bound.Limit() }

func (a *capacity) leave() { a.inFlight.Add(-1) }

// serve starts to serve a request of the tenant, or returns false. If it returns true, done must
// follow.
func (a *capacity) serve(s *share, tenant limit.TenantID) bool {
	if s.serving.Add(1) <= a.bound.ShareOf(tenant) {
		a.bound.Note(tenant)
		return true
	}
	s.serving.Add(-1)
	return false
}

// hold counts one more request as served, beyond any bound; done must follow.
func (s *share) hold() { s.serving.Add(1) }

func (s *share) done() { s.serving.Add(-1) }

// admitTenant limits the requests of one tenant to the admin API. A request counts until it ends or
// leaves.
func admitTenant(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := requestFrom(r.Context())
		q.capacity.bound.Note(q.actor.TenantID())
		admin := &q.capacity.of(q.actor.TenantID()).admin
		if admin.Add(1) > q.capacity.bound.Small() {
			admin.Add(-1)
			q.capacity.turnAway(w, r)
			return
		}
		q.kind = admin
		next.ServeHTTP(w, r)
	})
}

// admitKeyless limits the requests of one kind without a key, of all clients and of the networks of
// one, until their answers begin.
func admitKeyless(kind keyless) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			q := requestFrom(r.Context())
			leave, ok := q.capacity.takeKeyless(kind, r)
			if !ok {
				q.capacity.turnAway(w, r)
				return
			}
			q.place = leave
			next.ServeHTTP(w, r)
		})
	}
}

// takeKeyless takes a place for a request without a key. If it returns true, the caller must call
// leave once.
func (a *capacity) takeKeyless(kind keyless, r *http.Request) (leave func(), ok bool) {
	most := int(a.bound.Small())
	return kind.Take(networksOf(r), most, max(1, most/2))
}

// The bodies of requests without a key that arrive at once, of all networks and of one, which many
// people may share. With all of them, they use 4 MiB. Webhooks of unknown endpoints have as many.
const (
	maxArriving        = 1024
	maxNetworkArriving = 32
)

// readKeyless reads the body of a request without a key, before it takes a place. The request is
// not in flight meanwhile, so that slow senders keep out nobody but others of their network.
func (a *capacity) readKeyless(r *http.Request, limit int) ([]byte, *Problem) {
	if r.ContentLength == 0 {
		return readBody(r, nil, limit)
	}
	leave, ok := a.takeWaiting(a.arriving, r)
	if !ok {
		a.refuse()
		return nil, closing(r, overloaded())
	}
	defer leave()
	a.leave()
	body, p := readBody(r, nil, limit)
	if entered := a.enter(); p == nil && !entered {
		a.refuse()
		p = overloaded()
	}
	return body, p
}

// takeWaiting takes a place for a request without a key that is not in flight while it waits: for
// its body, or for its turn at Postgres. If it returns true, the caller must call leave once.
func (a *capacity) takeWaiting(kind keyless, r *http.Request) (leave func(), ok bool) {
	most := min(maxArriving, max(1, int(a.bound.Most()/4)))
	return kind.Take(networksOf(r), most, max(1, most*maxNetworkArriving/maxArriving))
}

// turnAway refuses a request outside the hot path.
func (a *capacity) turnAway(w http.ResponseWriter, r *http.Request) {
	a.refuse()
	writeProblem(w, r, overloaded())
}

// read reads the body of a request that has entered. The request does not count as served at this
// time.
func (a *capacity) read(s *share, r *http.Request, buf []byte, limit int) ([]byte, *Problem) {
	if r.ContentLength == 0 {
		return readBody(r, buf, limit)
	}
	if !a.await(s) {
		return buf, closing(r, overloaded())
	}
	body, p := readBody(r, buf, limit)
	if entered := a.resume(s); p == nil && !entered {
		p = overloaded()
	}
	return body, p
}

// await starts to wait for a body, or returns false. If it returns true, resume must follow.
func (a *capacity) await(s *share) bool {
	if s.reading.Add(1) > max(1, a.bound.Most()/4) {
		s.reading.Add(-1)
		a.refuse()
		return false
	}
	a.leave()
	return true
}

// resume ends the wait for a body. It reports whether the request may be served now. The request
// counts as served in either case.
func (a *capacity) resume(s *share) bool {
	s.reading.Add(-1)
	if a.enter() {
		return true
	}
	a.refuse()
	return false
}

const (
	// checkBodyTimeout is the timeout for the body of a check. A body has at most 16 KiB (a batch
	// somewhat more), and an application sends it at once.
	checkBodyTimeout = 2 * time.Second
	// The first fewBodies of a tenant over HTTP/2 have readTimeout instead, because a deadline for
	// a stream costs more than its check.
	fewBodies = 16
)

// hurry sets the deadline for the body of a check.
func (s *share) hurry(q *request, r *http.Request) {
	if r.ContentLength != 0 && (r.ProtoMajor < 2 || s.reading.Load() >= fewBodies) {
		setBodyDeadline(q.ResponseWriter, r, checkBodyTimeout)
	}
}

// refuse counts a request that is refused because too many are in flight. It returns how long its
// answer should wait.
func (a *capacity) refuse() time.Duration {
	a.shed.Inc()
	return a.bound.Refuse()
}

const overloadedDetail = "Too many requests are in flight. Try again in a second."

func overloaded() *Problem {
	return newProblem(http.StatusServiceUnavailable, codeOverloaded, overloadedDetail).withRetryAfter(1)
}
