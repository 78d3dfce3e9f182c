package engine_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	"weir/internal/limit"
)

// movingEngine returns no units while their counters are moving to another server.
type movingEngine struct {
	engine.Engine
	moving bool
	tried  int
}

func (e *movingEngine) Refund(ctx context.Context, refunds ...*engine.Refund) {
	if !e.moving {
		e.Engine.Refund(ctx, refunds...)
		return
	}
	e.tried += len(refunds)
	for _, r := range refunds {
		r.Err = engine.ErrMoving
	}
}

// movingFleet returns an instance that has ended a lease while its counters are moving, and the
// number of its checks.
func movingFleet(t *testing.T) (f *fleet, moving *movingEngine, asked int64) {
	f = newFleet(t, 1, leasedRule("api", limit.FixedWindow, 1_000, 60_000))
	moving = &movingEngine{Engine: f.store.Engine, moving: true}
	f.store.Engine = moving
	asked = f.checkUntilLeased(0, "s")
	f.move(1_000)
	require.Zero(t, f.instances[0].LeaseSets())
	require.Greater(t, moving.tried, 2)
	_, charged := f.instances[0].LeaseHeld()
	require.Positive(t, charged)
	require.Equal(t, asked+charged, f.used("s"))
	return f, moving, asked
}

// Units whose counters are moving to another server are returned when they have moved.
func TestLeasedUnitsOfMovingCountersGoBackLater(t *testing.T) {
	f, moving, asked := movingFleet(t)
	moving.moving = false
	f.move(50)
	require.Equal(t, asked, f.used("s"))
	require.Positive(t, f.metric(0, "weir_lease_units_returned_total"))
	require.Zero(t, f.metric(0, "weir_lease_units_stranded_total"))
}

// They are not kept for ever, nor after their counters were reset or the instance has stopped.
func TestLeasedUnitsOfMovingCountersAreGivenUp(t *testing.T) {
	for name, end := range map[string]func(*fleet){
		"the move takes too long": func(f *fleet) { f.move(11_000) },
		"the instance stops":      func(f *fleet) { f.instances[0].Close() },
		"a reset": func(f *fleet) {
			_, _, err := f.instances[0].Reset(context.Background(), f.policy, nil, check.Request{Subject: "s"})
			require.NoError(f.t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, moving, _ := movingFleet(t)
			end(f)
			_, charged := f.instances[0].LeaseHeld()
			require.Zero(t, charged)
			tried := moving.tried
			f.move(200)
			require.Equal(t, tried, moving.tried)
		})
	}
}

// A lease that ends while another instance resets its counters may be of the counters before.
func TestLeasedUnitsOfMovingCountersAreNotKeptAfterAReset(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 1_000, 60_000))
	resets := &resetDuringRefund{movingEngine: movingEngine{Engine: f.store.Engine, moving: true}}
	resets.reset = func() {
		_, _, err := f.instances[0].Reset(context.Background(), f.policy, nil, check.Request{Subject: "s"})
		require.NoError(t, err)
	}
	f.store.Engine = resets
	f.checkUntilLeased(0, "s")
	f.move(1_000)
	require.Equal(t, 1, resets.tried)
}

// A reset of other counters meanwhile costs no units.
func TestLeasedUnitsOfMovingCountersAreKeptAfterAResetOfOthers(t *testing.T) {
	f := newFleet(t, 1, leasedRule("api", limit.FixedWindow, 1_000, 60_000))
	resets := &resetDuringRefund{movingEngine: movingEngine{Engine: f.store.Engine, moving: true}}
	resets.reset = func() {
		_, _, err := f.instances[0].Reset(context.Background(), f.policy, nil, check.Request{Subject: "another"})
		require.NoError(t, err)
	}
	f.store.Engine = resets
	asked := f.checkUntilLeased(0, "s")
	f.move(1_000)
	require.Greater(t, resets.tried, 1)
	resets.moving = false
	f.move(50)
	require.Equal(t, asked, f.used("s"))
	require.Zero(t, f.metric(0, "weir_lease_units_stranded_total"))
}

// resetDuringRefund resets counters while the first refund is on its way.
type resetDuringRefund struct {
	movingEngine
	reset func()
}

func (e *resetDuringRefund) Refund(ctx context.Context, refunds ...*engine.Refund) {
	if e.tried == 0 {
		defer e.reset()
	}
	e.movingEngine.Refund(ctx, refunds...)
}
