package redis

import (
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
	"weir/internal/limit"
)

// acrossSlots is whether a node of a Cluster runs scripts whose keys are in several of its slots.
// Redis 7 and Valkey do. Other products may not know the flag, or may refuse keys that are not
// declared. So it is tried on each node, and until it has succeeded each tenant has a run of its
// own.
type acrossSlots struct {
	state   atomic.Int32
	trying  atomic.Bool
	tried   atomic.Int64 // awake time of the last try
	refusal atomic.Pointer[error]
}

const (
	acrossUnknown int32 = iota
	acrossYes
	acrossNo
)

// How often an answer is asked for again: the node may be another version by now.
const (
	acrossRetry   = time.Second
	acrossRecheck = time.Minute
)

// known reports whether the node is known to run such scripts.
func (a *acrossSlots) known() bool { return a.state.Load() == acrossYes }

// due reports whether it is time to try.
func (a *acrossSlots) due() bool {
	tried := a.tried.Load()
	since := engine.Awake() - time.Duration(tried)
	if tried == 0 {
		return true
	}
	switch a.state.Load() {
	case acrossYes:
		return false
	case acrossNo:
		return since >= acrossRecheck
	}
	return since >= acrossRetry
}

// inherit copies what is known of another node.
func (a *acrossSlots) inherit(o *acrossSlots) { a.state.Store(o.state.Load()) }

// refuses follows an error of a run for a node. A class that speaks of the script, and not of the
// state of the node, means that the node does not run such scripts.
func (a *acrossSlots) refuses(err error) bool {
	switch classOf(err) {
	case failOther, failScripting, failPermission:
		return replyText(err) != ""
	}
	return false
}

// tryAcrossSlots finds out whether the node runs scripts across slots: it charges two canaries in
// one run.
func (s *server) tryAcrossSlots() {
	a := &s.across
	if !a.trying.CompareAndSwap(false, true) {
		return
	}
	defer a.trying.Store(false)
	if !a.due() {
		return // another try has just ended
	}
	a.tried.Store(int64(engine.Awake()))
	r := newRequest()
	for _, key := range s.canaries(2) {
		r.add(&engine.Call{Cost: 1, Counters: []engine.Counter{{
			Key:     key,
			Numbers: limit.Numbers{Algorithm: limit.FixedWindowFirstHit, Limit: limit.MaxFixedLimit, WindowMS: limit.MaxWindowMS},
		}}})
	}
	if len(r.calls) == 0 {
		return
	}
	p := &pipeline{engine: s.engine, server: s, mode: together, scope: scopeNode}
	p.load([]*request{r})
	p.run(deadlineContext{time.Now().Add(redisIOTimeout)})
	p.deliver()
	for i := range r.calls {
		if err := r.calls[i].err; err != nil {
			if a.refuses(err) {
				a.refusal.Store(&err)
				a.state.Store(acrossNo)
			}
			return
		}
	}
	a.state.Store(acrossYes)
}

// canaries returns up to n keys of canaries in different slots of the server.
func (s *server) canaries(n int) (keys []string) {
	for i := 0; i < maxCanaries && len(keys) < n; i++ {
		if key := engine.CanaryKey(i); s.engine.serverOf(key) == s {
			keys = append(keys, key)
		}
	}
	return keys
}

// RunsBySlot returns how many nodes of a Cluster do not run scripts across slots, and what one of
// them says. Each tenant on them has a run of its own, which costs more.
func (e *Engine) RunsBySlot() (nodes int, err error) {
	e.servers.Range(func(_ *redis.Client, s *server) bool {
		if s.across.state.Load() == acrossNo {
			nodes++
			if refusal := s.across.refusal.Load(); refusal != nil {
				err = *refusal
			}
		}
		return true
	})
	return nodes, err
}
