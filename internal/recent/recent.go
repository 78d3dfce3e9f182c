package recent

import (
	"cmp"
	"container/list"
	"crypto/cipher"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/peers"
	"weir/internal/places"
)

// Decision is a recorded decision. Durations start at At.
type Decision struct {
	At           time.Time // when the check began, by the clock of the instance that answered
	Subject      string
	Resource     string
	Plan         string // slug; "" where the tenant has no plans
	Cost         int64
	Allowed      bool
	Code         check.Code
	Rule         string // slug of the deciding rule; "": none decided, and all that follows of it is void
	Source       string // where its number came from: "rule", "plan:SLUG" or "override"
	Quota        int64
	WindowMS     int64
	Remaining    int64
	RetryAfterMS int64 // NeverMS if no wait helps
	ResetAfterMS int64
	Penalized    bool
	Uncounted    bool // answered without counting, because Redis was unavailable
	Degraded     bool // of the decision as a whole
	Shadow       bool `json:",omitempty"` // no rule decided, but some in shadow matched
	// Repeats is the number of equal denials by the same instance within Span after At. These have
	// no entry of their own.
	Repeats int64
	// Span is at least RepeatsWithin. Of a subject that is denied all the time, older entries are
	// combined, within a minute. 0 from an instance that does not combine them: RepeatsWithin.
	Span time.Duration `json:",omitempty"`
}

// Last returns when the last of the repeats was, at the latest.
func (d *Decision) Last() time.Time {
	if d.Repeats == 0 {
		return d.At
	}
	return d.At.Add(max(d.Span, RepeatsWithin))
}

// RepeatsWithin is the time in which equal denials are counted on the first one.
const RepeatsWithin = time.Second

// NearLimit is a subject with little or nothing left of a quota.
type NearLimit struct {
	At           time.Time // when it was last seen near the limit
	Subject      string
	Resource     string // resource of that check
	Rule         string // slug
	Quota        int64
	Remaining    int64
	ResetAfterMS int64 // from At until the full quota is available
	Denied       bool  // that check was denied: a full limit need not deny
}

// Used is the share of the quota that is used up, 0 to 1.
func (n *NearLimit) Used() float64 { return 1 - float64(n.Remaining)/float64(n.Quota) }

// Query selects the recent decisions that meet all of its conditions.
type Query struct {
	Subject  string    // exactly; "": any
	Prefix   string    // of the subject
	Resource string    // exactly; "": any
	Rule     string    // the deciding one; "": any
	Denied   bool      // only denials
	Since    time.Time // not before
	Most     int       // 0: all
}

// Selects reports whether the decision meets the conditions.
func (q *Query) Selects(d *Decision) bool {
	return (!q.Denied || !d.Allowed) && (q.Subject == "" || q.Subject == d.Subject) && strings.HasPrefix(d.Subject, q.Prefix) &&
		(q.Resource == "" || q.Resource == d.Resource) && (q.Rule == "" || q.Rule == d.Rule) && !d.At.Before(q.Since)
}

// Log keeps some of the decisions of this process, only in memory: the last denials of each tenant,
// a sample of allowed checks, and the subjects near a limit. It shows people why a check was
// denied.
//
// Most decisions cost only a few comparisons. Recording one takes a lock. It is rare, because the
// number of recorded decisions per second is limited for each tenant and for all tenants, and these
// limits are checked before. A denial that repeats within a second is counted on the first one, and
// the number of entries of one subject and rule is limited, so that a busy subject does not evict
// the others.
type Log struct {
	seed  maphash.Seed
	clock func() time.Time
	peers *peers.Peers
	aead  cipher.AEAD // of messages between instances
	ask   asking
	turns *places.Rounds[limit.TenantID] // of answering other instances

	following *followers
	self      func() Instance

	seen   [recentSeen]atomic.Pointer[keptDecision] // the last recorded decisions, by hash
	paces  [recentPaces]recentPace                  // by tenant
	inAll  pace
	budget int64 // bytes

	watches atomic.Pointer[map[watchKey]*watchedSubject] // never changed, only replaced; nil: nobody watches

	mu      sync.Mutex // guards the fields below, and changes of watches
	bytes   int64      // roughly
	tenants map[limit.TenantID]*list.Element
	order   *list.List // of *tenantRecent, most recently used first
}

const (
	recentSeen  = 8192 // two decisions with the same slot evict each other, so repeats can get their own entries
	recentPaces = 1024 // tenants with the same slot share its limits

	recentDenied     = 200 // entries of a tenant
	recentDeniedEach = 25  // of those, entries of equal denials
	recentAllowed    = 100
	recentNear       = 64

	recentDeniedPerSecond  = 40 // of a tenant
	recentAllowedPerSecond = 10
	recentNearPerSecond    = 20
	recentPerSecond        = 2000 // in all

	recentBytes         = 32 << 20
	bytesPerRecent      = 400 // an entry, without its texts
	nearShare           = 5   // a subject is near a limit if less than 1/nearShare is left
	recentNearStaysLong = time.Hour
)

type recentPace struct {
	denied, allowed, near pace
	_                     [40]byte // keeps neighbours on different cache lines
}

// pace allows a number of decisions per second. Above that number it is only read.
type pace struct{ v atomic.Uint64 } // the second, and 16 bits of count

func (p *pace) take(second, most uint64) bool {
	for {
		old := p.v.Load()
		now := second<<16 | 1
		if old>>16 == second {
			if old&0xffff >= most {
				return false
			}
			now = old + 1
		}
		if p.v.CompareAndSwap(old, now) {
			return true
		}
	}
}

// keptDecision never changes, except for its repeats and their span.
type keptDecision struct {
	Decision
	tenant    limit.TenantID
	untilMS   int64
	spanMS    int64 // guarded by the lock of the log
	repeats   atomic.Int64
	remaining atomic.Int64 // after the last repeat
}

// tenantRecent has the recorded decisions of one tenant.
type tenantRecent struct {
	tenant  limit.TenantID
	denied  denials
	allowed ring
	near    []*keptDecision
}

// ring has the last entries. The oldest are overwritten.
type ring struct {
	entries []*keptDecision
	next    int
}

// put adds an entry and returns the one that it replaced, or nil.
func (r *ring) put(k *keptDecision, most int) (gone *keptDecision) {
	if len(r.entries) < most {
		r.entries = append(r.entries, k)
		return nil
	}
	gone, r.entries[r.next] = r.entries[r.next], k
	r.next = (r.next + 1) % most
	return gone
}

// Options are the parts of a Log. Keys and Peers are required.
type Options struct {
	Keys  check.Keys   // instances with the same keys answer each other
	Peers *peers.Peers // the other instances
	// Self returns the state of this instance. nil: it is unknown.
	Self  func() Instance
	Clock func() time.Time // nil: time.Now
}

// New returns a Log without decisions. It is an Observer of a Checker.
func New(o Options) *Log {
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.Self == nil {
		o.Self = func() (none Instance) { return none }
	}
	return &Log{
		seed: maphash.MakeSeed(), clock: o.Clock, peers: o.Peers, aead: messagesAEAD(o.Keys), self: o.Self, budget: recentBytes,
		tenants: map[limit.TenantID]*list.Element{}, order: list.New(), turns: places.NewRounds[limit.TenantID](replyingAtOnce, mostReplies),
		following: newFollowers(o.Clock),
	}
}

// Decided implements check.Observer. A dry run is not recorded. Checks that a client decided and
// reported are not recorded either, but count if somebody watches the subject.
func (r *Log) Decided(tenant limit.TenantID, req *check.Request, d *check.Decision, now time.Time) {
	if req.DryRun {
		return
	}
	nowMS := now.UnixMilli()
	r.countWatched(tenant, d, nowMS)
	if d.Reported > 0 {
		return
	}
	second := uint64(nowMS / 1000)                                        // not negative
	paces := &r.paces[(uint(tenant[14])<<8|uint(tenant[15]))%recentPaces] // ids of tenants end in random bits
	near := nearLimit(d)
	if d.Allowed {
		if paces.allowed.take(second, recentAllowedPerSecond) && r.inAll.take(second, recentPerSecond) {
			r.keep(tenant, d, now, true, near)
			return
		}
		if !near {
			return
		}
	}
	place := r.place(tenant, d)
	if last := place.Load(); last != nil && nowMS < last.untilMS && last.same(tenant, d) {
		last.repeats.Add(1)
		if near {
			last.remaining.Store(d.Rules[d.Deciding].Remaining)
		}
		return
	}
	bound, most := &paces.denied, uint64(recentDeniedPerSecond)
	if d.Allowed {
		bound, most = &paces.near, recentNearPerSecond
	}
	if bound.take(second, most) && r.inAll.take(second, recentPerSecond) {
		place.Store(r.keep(tenant, d, now, !d.Allowed, near))
	}
}

// nearLimit reports whether the deciding rule has little or nothing left.
func nearLimit(d *check.Decision) bool {
	if d.Deciding < 0 {
		return false
	}
	r := &d.Rules[d.Deciding]
	return !r.Uncounted && !r.CostExceeds && r.Remaining < (r.Quota+nearShare-1)/nearShare
}

func (r *Log) place(tenant limit.TenantID, d *check.Decision) *atomic.Pointer[keptDecision] {
	h := maphash.String(r.seed, d.Subject) ^ 0x9e3779b97f4a7c15*maphash.String(r.seed, d.Resource) ^ uint64(tenant[15])
	if d.Allowed {
		h = ^h
	}
	return &r.seen[h%recentSeen]
}

// same reports whether a decision repeats the recorded one.
func (k *keptDecision) same(tenant limit.TenantID, d *check.Decision) bool {
	return k.Allowed == d.Allowed && k.Code == d.Code && k.Subject == d.Subject && k.Resource == d.Resource && k.tenant == tenant &&
		(d.Deciding < 0 && k.Rule == "" || d.Deciding >= 0 && k.Rule == d.Rules[d.Deciding].Rule.Slug)
}

// keep records a decision in the list of its kind, or as a subject near a limit, or both.
func (r *Log) keep(tenant limit.TenantID, d *check.Decision, now time.Time, listed, near bool) *keptDecision {
	k := &keptDecision{Decision: recentOf(d, now), tenant: tenant, untilMS: now.Add(RepeatsWithin).UnixMilli(), spanMS: RepeatsWithin.Milliseconds()}
	k.remaining.Store(k.Remaining)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.of(tenant)
	if near {
		r.bytes += t.noteNear(k)
	}
	if listed {
		r.bytes += k.bytes()
		var gone *keptDecision
		if d.Allowed {
			gone = t.allowed.put(k, recentAllowed)
		} else {
			gone = t.denied.put(k)
		}
		if gone != nil {
			r.bytes -= gone.bytes()
		}
	}
	for r.bytes > r.budget && r.order.Len() > 1 {
		r.forget(r.order.Back())
	}
	return k
}

// recentOf copies the recorded fields of a decision. The strings of a request are parts of a larger
// text, so they are cloned. Those of rules and plans live as long as their policy.
func recentOf(d *check.Decision, now time.Time) Decision {
	out := Decision{
		At: now, Subject: strings.Clone(d.Subject), Resource: strings.Clone(d.Resource), Plan: d.Plan, Cost: d.Cost,
		Allowed: d.Allowed, Code: d.Code, Degraded: d.Degraded,
	}
	if d.Deciding >= 0 {
		r := &d.Rules[d.Deciding]
		out.Rule, out.Source, out.Quota, out.WindowMS, out.Remaining = r.Rule.Slug, r.Source, r.Quota, r.WindowMS, r.Remaining
		out.RetryAfterMS, out.ResetAfterMS, out.Penalized, out.Uncounted = r.RetryAfterMS, r.ResetAfterMS, r.Penalized, r.Uncounted
	}
	out.Shadow = d.Deciding < 0 && slices.ContainsFunc(d.Rules, func(r check.RuleDecision) bool { return r.Mode == limit.Shadow })
	return out
}

func (d *Decision) bytes() int64 { return bytesPerRecent + int64(len(d.Subject)+len(d.Resource)) }

// of returns a tenant's entries, and moves the tenant to the front.
func (r *Log) of(tenant limit.TenantID) *tenantRecent {
	if e := r.tenants[tenant]; e != nil {
		r.order.MoveToFront(e)
		return e.Value.(*tenantRecent)
	}
	t := &tenantRecent{tenant: tenant}
	r.tenants[tenant] = r.order.PushFront(t)
	return t
}

func (r *Log) forget(e *list.Element) {
	t := r.order.Remove(e).(*tenantRecent)
	delete(r.tenants, t.tenant)
	for _, entries := range [][]*keptDecision{t.denied.entries, t.allowed.entries} {
		for _, k := range entries {
			r.bytes -= k.bytes()
		}
	}
	for i := range t.near {
		r.bytes -= t.near[i].bytes()
	}
}

// noteNear records that a subject is near a limit, and returns by how many bytes the notes grew. If
// the list is full, it removes a subject whose full quota is available, or else the one with the
// most left.
func (t *tenantRecent) noteNear(k *keptDecision) (bytes int64) {
	for i, n := range t.near {
		if n.Subject == k.Subject && n.Rule == k.Rule {
			t.near[i] = k
			return k.bytes() - n.bytes()
		}
	}
	if len(t.near) < recentNear {
		t.near = append(t.near, k)
		return k.bytes()
	}
	least := 0
	for i := range t.near {
		if t.near[i].rank(k.At) < t.near[least].rank(k.At) {
			least = i
		}
	}
	bytes = k.bytes() - t.near[least].bytes()
	t.near[least] = k
	return bytes
}

// rank returns the used share, or less than any share if the full quota is available.
func (k *keptDecision) rank(now time.Time) float64 {
	if !k.holds(now) {
		return -1
	}
	n := k.note()
	return n.Used()
}

// holds reports whether the note may still be true.
func (k *keptDecision) holds(now time.Time) bool {
	age := now.Sub(k.At)
	return age < time.Duration(k.ResetAfterMS)*time.Millisecond && age < recentNearStaysLong
}

func (k *keptDecision) note() NearLimit {
	return NearLimit{
		At: k.At, Subject: k.Subject, Resource: k.Resource, Rule: k.Rule, Quota: k.Quota, Remaining: k.remaining.Load(), ResetAfterMS: k.ResetAfterMS, Denied: !k.Allowed,
	}
}

// list returns this process's entries, newest first.
func (r *Log) list(tenant limit.TenantID, q Query) []Decision {
	return newestFirst(r.entries(tenant, q), q.Most)
}

// entries returns this process's entries in no order.
func (r *Log) entries(tenant limit.TenantID, q Query) (out []Decision) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.tenants[tenant]
	if e == nil {
		return nil
	}
	t := e.Value.(*tenantRecent)
	for _, entries := range [][]*keptDecision{t.denied.entries, t.allowed.entries} {
		for _, k := range entries {
			if q.Selects(&k.Decision) {
				d := k.Decision
				if !d.Allowed {
					d.Repeats = k.repeats.Load()
					if k.spanMS > RepeatsWithin.Milliseconds() {
						d.Span = time.Duration(k.spanMS) * time.Millisecond
					}
				}
				out = append(out, d)
			}
		}
	}
	return out
}

func newestFirst(list []Decision, most int) []Decision {
	slices.SortStableFunc(list, func(a, b Decision) int { return cmp.Or(b.At.Compare(a.At), cmp.Compare(a.Subject, b.Subject)) })
	if most > 0 && len(list) > most {
		list = list[:most]
	}
	return list
}

// near returns the subjects that this process has seen near a limit and that may still be.
func (r *Log) near(tenant limit.TenantID) (out []NearLimit) {
	now := r.clock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.tenants[tenant]; e != nil {
		for _, n := range e.Value.(*tenantRecent).near {
			if n.holds(now) {
				out = append(out, n.note())
			}
		}
	}
	return out
}

// mostUsedFirst keeps the latest note of each subject and rule.
func mostUsedFirst(list []NearLimit, most int) []NearLimit {
	slices.SortFunc(list, func(a, b NearLimit) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Rule, b.Rule), b.At.Compare(a.At))
	})
	list = slices.CompactFunc(list, func(a, b NearLimit) bool { return a.Subject == b.Subject && a.Rule == b.Rule })
	slices.SortStableFunc(list, func(a, b NearLimit) int { return cmp.Or(cmp.Compare(b.Used(), a.Used()), b.At.Compare(a.At)) })
	if most > 0 && len(list) > most {
		list = list[:most]
	}
	return list
}
