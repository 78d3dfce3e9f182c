package enginetest

import (
	"testing"
	_ "time/tzdata" // the rows must not depend on the machine's zones

	"github.com/stretchr/testify/require"
)

// If a quota renews an hour early or late on the day of a clock change, the invoice is wrong.
func TestBoundsOfCalendarWindows(t *testing.T) {
	file, err := ReadFile(Vectors(), "cycles/cycles.json")
	require.NoError(t, err)
	require.Len(t, file.Bounds, 1200)
	for i, row := range file.Bounds {
		for _, failure := range RunBounds(i, row) {
			t.Error(failure)
		}
	}
}

// RunBounds must find wrong bounds; otherwise a passing run proves nothing.
func TestRunBoundsReportsEachDifference(t *testing.T) {
	noon := int64(43_200_000)
	row := Bounds{Window: "day", Zone: "UTC", TimeMS: noon, StartMS: 1, EndMS: 86_400_001}
	require.Equal(t, []Failure{
		{Case: "day in UTC from calendar at 43200000", Step: 7, Field: "start_ms", Want: "1", Got: "0"},
		{Case: "day in UTC from calendar at 43200000", Step: 7, Field: "end_ms", Want: "86400001", Got: "86400000"},
	}, RunBounds(7, row))

	row = Bounds{Window: "day", Zone: "UTC", AnchorMS: &noon, TimeMS: noon, StartMS: noon, EndMS: noon + 86_400_000}
	require.Empty(t, RunBounds(0, row))
	row.Zone = "Europe/Nowhere"
	require.Contains(t, RunBounds(0, row)[0].Got, `zone "Europe/Nowhere" must be an IANA time zone`)
	row.Zone, row.Window = "UTC", "decade"
	require.Contains(t, RunBounds(0, row)[0].Got, `window "decade" must be one of day, month, week, year`)
}
