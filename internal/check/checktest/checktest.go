// Package checktest builds a checker and its engines for tests, in the same way as the server.
//
// Example: New with the zero Options returns a checker whose counters are in memory. With a policy
// of 2 per minute, the first two checks of a subject are allowed, and the third is denied. With the
// engine of internal/engine/redis as Shared, the same test runs on Redis.
package checktest

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/peers"
)

// Options are the settings of a test. The zero Options select counters in memory and the real
// clock.
type Options struct {
	Keys      check.Keys
	Shared    engine.Engine    // nil: a Memory
	Clock     func() time.Time // nil: the real clock
	Instances int              // number of instances that share the limits during an outage; 0: 1
	Observers []check.Observer
	Registry  *prometheus.Registry // nil: a new one
}

// Parts are a checker and its parts.
type Parts struct {
	Registry *prometheus.Registry
	Metrics  *check.Metrics
	Peers    *peers.Peers
	Stack    *engine.Stack
	Checker  *check.Checker
}

// New returns the parts of a checker. They are closed when the test ends.
func New(tb testing.TB, o Options) *Parts {
	tb.Helper()
	p := &Parts{Registry: o.Registry}
	if p.Registry == nil {
		p.Registry = prometheus.NewRegistry()
	}
	memory := engine.MemoryOptions{}
	if o.Clock != nil {
		memory.Clock = func() int64 { return o.Clock().UnixMilli() }
	}
	if o.Shared == nil {
		o.Shared = engine.NewMemory(memory)
	}
	p.Metrics, p.Peers = check.NewMetrics(p.Registry), peers.New(o.Instances, nil, p.Registry)
	p.Stack = engine.NewStack(engine.StackOptions{
		Shared: o.Shared, Local: engine.NewMemory(memory), Share: p.Peers.Share,
		Metrics: engine.NewMetrics(p.Registry), Clock: o.Clock,
	})
	tb.Cleanup(p.Stack.Close)
	p.Checker = check.NewChecker(check.CheckerOptions{
		Keys: o.Keys, Engine: p.Stack, Metrics: p.Metrics, Clock: o.Clock, Observers: o.Observers,
	})
	return p
}

// Rig is a Checker with a counter store in memory that can be made to fail, and with a clock that
// only the test moves.
type Rig struct {
	*Parts
	T      *testing.T
	Now    atomic.Int64 // milliseconds since 1970
	Store  *SwitchEngine
	Policy *check.Policy
}

// Start is the initial time of a Rig: a whole minute.
const Start = int64(1_800_000_000_000)

// SwitchEngine is an engine that can be made to fail.
type SwitchEngine struct {
	engine.Engine
	Fail atomic.Bool
}

// Evaluate implements engine.Engine.
func (s *SwitchEngine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	if s.Fail.Load() {
		for _, c := range calls {
			c.Err = context.DeadlineExceeded
		}
		return
	}
	s.Engine.Evaluate(ctx, calls...)
}

// NewRig returns a Rig for a policy.
func NewRig(t *testing.T, data check.PolicyData, observers []check.Observer, subjects ...check.SubjectData) *Rig {
	t.Helper()
	r := &Rig{T: t}
	r.Now.Store(Start)
	r.Store = &SwitchEngine{Engine: engine.NewMemory(engine.MemoryOptions{Clock: r.Now.Load})}
	r.Parts = New(t, Options{Keys: rigKeys, Shared: r.Store, Clock: r.Clock, Observers: observers})
	r.Policy = r.Compile(data, subjects...)
	return r
}

var rigKeys = check.NewKeys([16]byte{1})

// Clock returns the time of the rig.
func (r *Rig) Clock() time.Time { return time.UnixMilli(r.Now.Load()) }

// Move advances the time.
func (r *Rig) Move(d time.Duration) { r.Now.Add(d.Milliseconds()) }

// Compile returns a policy of the rig's tenant.
func (r *Rig) Compile(data check.PolicyData, subjects ...check.SubjectData) *check.Policy {
	r.T.Helper()
	policy, err := check.CompilePolicy(rigKeys, uuid.MustParse("018f0000-0000-7000-8000-000000000001"), data)
	require.NoError(r.T, err)
	for _, s := range subjects {
		policy.AddSubject(s)
	}
	return policy
}

// Check decides one request. Its resource defaults to "default".
func (r *Rig) Check(req check.Request) check.Decision {
	r.T.Helper()
	if req.Resource == "" {
		req.Resource = "default"
	}
	decisions, err := r.Checker.Check(context.Background(), r.Policy, []check.Request{req})
	require.NoError(r.T, err)
	return decisions[0]
}

// Minute returns a rule with a limit per minute for each subject.
func Minute(slug string, units int64) limit.Rule {
	return limit.Rule{
		Slug: slug, Resource: "*", Algorithm: limit.FixedWindow, Limit: units,
		Window: limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}, By: []string{"subject"},
	}
}
