package check_test

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
)

// Only units that went back to their counters count as returned.
func TestReturnedUnitsOfLeases(t *testing.T) {
	s := newScaleRig(t)
	lost := s.lease(250)
	_, _, err := s.Checker.Reset(context.Background(), s.Policy, nil, check.Request{Subject: "s"})
	require.NoError(t, err)
	require.NoError(t, s.Checker.ReturnLease(t.Context(), &lost.Grant, 250))
	s.returned("0", "there is no such counter any more")
	kept := s.lease(200)
	require.NoError(t, s.Checker.ReturnLease(t.Context(), &kept.Grant, 150))
	s.returned("150", "these went back")
	s.left(950-1, "the dry run is one")
}

func (s *scaleRig) returned(units, message string) {
	s.t.Helper()
	const name = "weir_client_lease_units_returned_total"
	want := "# HELP " + name + " Units that clients returned, and that went back to all of their counters.\n# TYPE " + name + " counter\n" + name + " " + units + "\n"
	require.NoError(s.t, testutil.GatherAndCompare(s.Registry, strings.NewReader(want), name), message)
}
