package tenants

import (
	"context"
	"fmt"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// WriteRates bound how often each tenant may change its configuration. Every change is work for all
// instances, which read the tenant anew, and changes of all tenants take their numbers one after
// the other, so one tenant's program in a loop would be felt by the others.
//
// An instance counts for itself and in memory: what is to keep a load away is no load itself. A
// tenant that was quiet may write ten seconds' worth at once.
type WriteRates struct {
	Writes int // a second; 0: unbounded
	Resets int // of counters, a second, which count as writes as well; 0: unbounded
}

// writeBurst is how many seconds' worth of writes may come at once.
const writeBurst = 10

// WriteKind is what a write is counted as.
type WriteKind int

// The kinds of writes.
const (
	OrdinaryWrite WriteKind = iota
	ResetWrite              // a reset of counters
)

// TooOftenError says that a tenant writes more often than it may.
type TooOftenError struct{ RetryAfter time.Duration }

func (e *TooOftenError) Error() string {
	return fmt.Sprintf("the tenant writes too often; again in %s", e.RetryAfter)
}

// writeRates counts the writes of each tenant.
type writeRates struct {
	engine *engine.Memory
	counts [2]engine.Counter // without the tenant's part of the key; Limit 0: unbounded
}

func newWriteRates(rates WriteRates, now func() time.Time) *writeRates {
	w := &writeRates{engine: engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return now().UnixMilli() }})}
	for i, perSecond := range []int{rates.Writes, rates.Resets} {
		w.counts[i] = engine.Counter{Key: []string{"writes ", "resets "}[i], Numbers: limit.Numbers{
			Algorithm: limit.TokenBucket, Limit: int64(perSecond), Burst: writeBurst * int64(perSecond), WindowMS: time.Second.Milliseconds(),
		}}
	}
	return w
}

// AdmitWrite counts one write of the actor's tenant, before it is tried. Error: *TooOftenError, and
// then nothing is counted.
func (s *Store) AdmitWrite(ctx context.Context, a Actor, kind WriteKind) error {
	w := s.writes
	call := engine.Call{Tenant: a.tenant, Cost: 1}
	for i, counter := range w.counts {
		if counter.Numbers.Limit > 0 && i <= int(kind) {
			counter.Key += string(a.tenant[:])
			call.Counters = append(call.Counters, counter)
		}
	}
	if len(call.Counters) == 0 {
		return nil
	}
	w.engine.Evaluate(ctx, &call)
	if call.Err != nil {
		return fmt.Errorf("count a write: %w", call.Err)
	}
	if call.Outcome.Allowed {
		return nil
	}
	var wait int64
	for _, v := range call.Outcome.Verdicts {
		wait = max(wait, v.RetryAfterMS)
	}
	return &TooOftenError{RetryAfter: time.Duration(wait) * time.Millisecond}
}
