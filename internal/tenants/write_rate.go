package tenants

import (
	"context"
	"errors"
	"fmt"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// WriteRates limit how often each tenant may change its configuration. Every change is work for all
// instances, which read the tenant again, and changes of all tenants take their numbers one after
// the other. Without a limit, one tenant's program in a loop would slow down the others.
//
// Each instance counts by itself and in memory, so that the limit itself causes no load. A tenant
// that was idle may write ten seconds' worth at once.
type WriteRates struct {
	Writes int // per second; 0: no limit
	Resets int // of counters, per second, which count as writes, too; 0: no limit
}

// writeBurst is how many seconds' worth of writes may come at once.
const writeBurst = 10

// WriteKind is the kind of a write.
type WriteKind int

// The kinds of writes.
const (
	OrdinaryWrite WriteKind = iota
	ResetWrite              // a reset of counters
	// EndWrite ends access: of a key, a member or a link. If the tenant writes too often, it has a
	// rate of its own, for each actor: a stolen key that writes all the time must not hold off its
	// own revocation.
	EndWrite
	// CustomerWrite is a request of a customer. All customers of a tenant have a rate of their own,
	// so that they do not keep its members from writing.
	CustomerWrite
)

// endsASecond is the rate of an actor's writes that end access, if the tenant writes too often.
const endsASecond = 1

// TooOftenError means that a tenant exceeds its rate of writes, or what it may write in a day.
type TooOftenError struct {
	RetryAfter time.Duration
	Why        string // "": the rate of writes
}

func (e *TooOftenError) Error() string {
	if e.Why != "" {
		return fmt.Sprintf("%s; retry in %s", e.Why, e.RetryAfter)
	}
	return fmt.Sprintf("the tenant writes too often; retry in %s", e.RetryAfter)
}

// writeRates counts the writes of each tenant.
type writeRates struct {
	engine *engine.Memory
	// Of writes, resets, ends of access and customers, without the tenant's part of the key;
	// Limit 0: no limit.
	counts [4]engine.Counter
}

func newWriteRates(rates WriteRates, now func() time.Time) *writeRates {
	w := &writeRates{engine: engine.NewMemory(engine.MemoryOptions{Clock: func() int64 { return now().UnixMilli() }})}
	ends := min(rates.Writes, endsASecond)
	for i, perSecond := range []int{rates.Writes, rates.Resets, ends, rates.Writes} {
		w.counts[i] = engine.Counter{Key: []string{"writes ", "resets ", "ends ", "customers "}[i], Numbers: limit.Numbers{
			Algorithm: limit.TokenBucket, Limit: int64(perSecond), Burst: writeBurst * int64(perSecond), WindowMS: time.Second.Milliseconds(),
		}}
	}
	return w
}

// AdmitWrite counts one write of the actor's tenant before it is executed. Error: *TooOftenError,
// and then nothing is counted.
func (s *Store) AdmitWrite(ctx context.Context, a Actor, kind WriteKind) error {
	if kind == EndWrite {
		if err := s.countWrite(ctx, a, OrdinaryWrite); err == nil || !errors.As(err, new(*TooOftenError)) {
			return err
		}
	}
	return s.countWrite(ctx, a, kind)
}

func (s *Store) countWrite(ctx context.Context, a Actor, kind WriteKind) error {
	w := s.writes
	call := engine.Call{Tenant: a.tenant, Cost: 1}
	counts := w.counts[kind : kind+1]
	if kind == ResetWrite {
		counts = w.counts[:ResetWrite+1] // which is a write, too
	}
	for _, counter := range counts {
		if counter.Numbers.Limit == 0 {
			continue
		}
		counter.Key += string(a.tenant[:])
		if kind == EndWrite {
			counter.Key += string(a.id[:])
		}
		call.Counters = append(call.Counters, counter)
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
