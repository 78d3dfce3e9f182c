package load

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestCallsCountsTheMeasuredPart(t *testing.T) {
	var all, before atomic.Int64
	plan := Plan{Connections: 3, Measure: time.Millisecond, Begin: func() { before.Store(all.Load()) }, End: func() {}}
	r, err := Calls(t.Context(), plan, func() (bool, error) { return all.Add(1)%2 == 0, nil })
	require.NoError(t, err)
	require.Equal(t, all.Load(), r.Asked)
	require.LessOrEqual(t, r.Requests, all.Load()-before.Load()+int64(plan.Connections), "a call that began before may end in the measured part")
	require.LessOrEqual(t, r.Denied, r.Requests)
	require.Positive(t, r.Elapsed)

	failure := errors.New("misuse")
	_, err = Calls(t.Context(), plan, func() (bool, error) { return false, failure })
	require.ErrorIs(t, err, failure)
}
