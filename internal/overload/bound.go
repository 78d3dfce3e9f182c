// Package overload bounds the number of concurrent requests by the time for which they wait.
//
// A fixed bound is wrong on every machine but one. If it is high, requests wait long before the
// first is refused. If it is low, the machine is idle while requests are refused. A Bound therefore
// adapts to two waits, every Interval:
//
//   - queued: how long calls waited for a pipeline to Redis. It is the smallest wait of the
//     interval, as in CoDel (RFC 8289): if even the luckiest batch waited, the queue stands. Its
//     target is longer by one round trip to Redis, because a pipeline is free again after one.
//   - runnable: how long goroutines that could run waited for a processor, on average. A request
//     waits in this way before Weir can read it, so it is also the least time of a refusal.
//
// If one of them is above its target, the bound falls below the number of requests in flight, in
// proportion to the excess. Otherwise it rises: quickly while nothing was refused, slowly if it
// was the bound that refused. After the start it rises from a small number, because policies,
// connections and circuits are cold.
//
// A refusal is cheaper than a check, but not free: most of its cost is reading and writing on the
// connection. Clients that ignore Retry-After and repeat at once can therefore use up a processor
// with refusals. If goroutines wait although the number of requests in flight is bounded, the
// refused connections are the load. Refusals are then answered after a pause. It limits them to
// perThread per second and thread, and to twice that number if no goroutine waits: another process,
// such as Redis, may need the processor. If the pause came after the answer, a proxy would send
// requests of others on the connection, and they would wait.
//
// An example, with two threads and checks of 50 µs each: capacity is 40 000 checks per second.
// 4 000 clients send without a pause. Each check waits 100 ms, and goroutines wait 25 ms per turn.
// The bound falls from 10 000 to 2 000, then to 1 920, where goroutines wait 12 ms. The other
// clients are refused, and repeat at once. Goroutines wait again, so refused connections pause.
//
// In the queue for Redis, tenants take turns. If only a few tenants' calls wait there, the bound of
// all requests stays, and each of those tenants gets a bound of its own (tenants.go).
package overload

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

const (
	// Interval is the time between two adjustments.
	Interval = 100 * time.Millisecond
	// maxQueued is the target of the wait for a pipeline to Redis, beyond one round trip. While
	// Redis answers, a call waits for up to four times its timeout. The target is at most half of
	// that.
	maxQueued = 25 * time.Millisecond
	// maxRunnable is the target of the wait for a processor. A check has two to four turns on a
	// processor, so it waits up to 50 ms; a refusal has one.
	maxRunnable = 12 * time.Millisecond
	// perThread is the number of refusals per second and thread if processors are short. At 8 µs
	// each, they take 4 % of its time.
	perThread = 5000
	// maxPause is the Retry-After of a refusal.
	maxPause = time.Second
	minPause = time.Millisecond
	// maxIdlePause is the longest pause while no goroutine waits.
	maxIdlePause = 200 * time.Millisecond
	// startPerThread is the bound at the start. It is also the smallest bound for the wait for
	// processors, because this wait has other causes, such as other processes of the machine.
	startPerThread = 64
	// leastBound is the smallest bound for the wait for Redis. Redis decides 128 of the most
	// expensive calls in about 50 ms.
	leastBound = 128
	// leastSmall and mostSmall are the range of Small.
	leastSmall = 16
	mostSmall  = 64
)

// Signals are the waits of the last Interval.
type Signals struct {
	Queued, Runnable time.Duration
	Trip             time.Duration // the shortest round trip to Redis of the last seconds
	InFlight         int64         // the most requests that were in flight at once
	Refused          int64
	Failed           int64   // answers of errors and redirects, in refusals
	Standing         []Queue // of tenants and servers; a tenant may be in it for several servers
}

// Bound is the maximum number of concurrent requests. All methods may be called concurrently,
// except Adjust.
type Bound struct {
	most      int64
	threads   int64
	adapts    bool
	longest   time.Duration // for which the target of the wait for a pipeline may be
	bound     atomic.Int64
	pause     atomic.Int64 // ns, of refusals
	failPause atomic.Int64 // ns, of other answers that pause
	refused   atomic.Int64 // since the last Adjust
	failed    atomic.Int64 // the same, of other answers that pause
	tenants   atomic.Pointer[tenantBounds]
	several   several
	offenders offenders
}

// New returns a bound of up to most, on a machine with so many threads, of calls that wait for a
// silent Redis for at most timeout. It begins with a small number, and only Adjust changes it.
func New(most int64, threads int, timeout time.Duration) *Bound {
	b := &Bound{most: most, threads: int64(threads), adapts: true, longest: 2 * timeout, offenders: offenders{seed: maphash.MakeSeed()}}
	b.bound.Store(min(most, startPerThread*b.threads))
	return b
}

// Fixed returns a bound that never changes.
func Fixed(most int64) *Bound {
	b := &Bound{most: most, threads: 1, offenders: offenders{seed: maphash.MakeSeed()}}
	b.bound.Store(most)
	return b
}

// Most returns the number that the bound never exceeds.
func (b *Bound) Most() int64 { return b.most }

// Limit returns the maximum number of concurrent requests.
func (b *Bound) Limit() int64 { return b.bound.Load() }

// Share returns the maximum for one tenant: half of the bound. A bound that adapts leaves a single
// tenant enough to keep all processors busy.
func (b *Bound) Share() int64 {
	bound := b.bound.Load()
	if !b.adapts {
		return max(1, bound/2)
	}
	return max(min(bound, startPerThread*b.threads), bound/2)
}

// Small returns the maximum of one tenant's requests to the admin API. Most of them wait for one of
// a few connections to Postgres, so more of them would only wait longer.
func (b *Bound) Small() int64 { return min(max(leastSmall, b.Limit()/8), mostSmall, b.Share()) }

// Refuse notes a refusal, and returns how long the connection must pause before the answer.
func (b *Bound) Refuse() time.Duration { return b.RefuseMore(1) }

// RefuseMore notes that a refusal takes as long as so many more, and returns how long the
// connection must pause.
func (b *Bound) RefuseMore(refusals int64) time.Duration {
	b.refused.Add(refusals)
	return time.Duration(b.pause.Load())
}

// Fail notes an answer that takes as long as so many refusals, and that a client can ask for
// without an end: an error, or a redirect to the sign-in page. It returns how long the client, a
// tenant or a site, must pause before it: those who ask for few need not. Such answers have a pause
// of their own, which their number alone lengthens, and say nothing about the bound: the streams of
// a connection with HTTP/2 wait for a processor several times, but hardly longer on average.
func (b *Bound) Fail(client string, refusals int64) time.Duration {
	b.failed.Add(refusals)
	if !b.offenders.add(client, refusals) {
		return 0
	}
	return time.Duration(b.failPause.Load())
}

// Pause returns how long a refused connection must pause now.
func (b *Bound) Pause() time.Duration { return time.Duration(b.pause.Load()) }

// FailPause returns how long a client with many errors must pause now.
func (b *Bound) FailPause() time.Duration { return time.Duration(b.failPause.Load()) }

// TakeRefused returns the number of refusals since its last call.
func (b *Bound) TakeRefused() int64 { return b.refused.Swap(0) }

// TakeFailed is TakeRefused for what Fail has noted.
func (b *Bound) TakeFailed() int64 { return b.failed.Swap(0) }

// Adjust adapts the bound and the pause to the waits of the last Interval.
func (b *Bound) Adjust(s Signals) {
	if !b.adapts {
		return
	}
	b.several.adjust()
	b.offenders.interval.Add(1)
	standing := together(s.Standing)
	b.adjustTenants(standing, min(maxQueued/tenantPart+s.Trip, b.longest/tenantPart))
	target := min(maxQueued+s.Trip, b.longest)
	budget := perThread * b.threads * int64(Interval) / int64(time.Second)
	short := s.Runnable > maxRunnable
	adjustPause(&b.pause, s.Refused, budget, short)
	adjustPause(&b.failPause, s.Failed, budget, short)
	bound := b.bound.Load()
	switch {
	case s.Queued > target && !ofFewTenants(standing, target, s.InFlight, bound):
		bound = b.lower(bound, s, float64(target)/float64(s.Queued), leastBound)
	case short && s.Refused+s.Failed > 2*budget: // refusals are the load, and the pause is the remedy
	case short:
		bound = b.lower(bound, s, float64(maxRunnable)/float64(s.Runnable), startPerThread*b.threads)
	case s.Refused > 0:
		bound += bound/16 + 1
	default:
		bound *= 2
	}
	b.bound.Store(min(bound, b.most))
}

// lower returns a bound below the number of requests in flight, by the ratio of target and wait.
func (b *Bound) lower(bound int64, s Signals, ratio float64, least int64) int64 {
	used := float64(min(bound, s.InFlight))
	return min(bound, max(least, int64(used*max(ratio, 0.5))))
}

// adjustPause lengthens a pause if the answers after it take much time, or take time while
// processors are short. Otherwise it shortens the pause.
func adjustPause(of *atomic.Int64, answers, budget int64, short bool) {
	pause := time.Duration(of.Load())
	switch {
	case answers > 2*budget || short && answers > budget:
		longest := maxIdlePause
		if short {
			longest = maxPause
		}
		pause = min(max(pause, minPause)*time.Duration(min(answers/budget+1, 4)), longest)
	case answers < budget || !short:
		if pause -= pause/8 + minPause/8; pause < minPause {
			pause = 0
		}
	}
	of.Store(int64(pause))
}
