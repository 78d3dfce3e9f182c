package harness

import (
	"fmt"
	"time"
)

// QuietWindow returns the longest window of at most this many days, a multiple of step days, whose
// next edge, counted from 1970, is at least a day after now, so that no edge occurs during a test.
// There is one for 30 days in steps of 1 and for 360 days in steps of 3, whatever the day is; if
// there is none, it panics.
func QuietWindow(now time.Time, days, step int) string {
	const day = 24 * time.Hour
	for ; days > 0; days -= step {
		window := time.Duration(days) * day
		if left := window - time.Duration(now.UnixNano())%window; left >= day {
			return fmt.Sprintf("%dd", days)
		}
	}
	panic("every window has its edge within a day")
}
