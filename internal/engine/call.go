package engine

import (
	"errors"

	"weir/internal/limit"
)

var (
	errNumbers   = errors.New("numbers of a counter are out of range")
	errDuplicate = errors.New("duplicate counter in one call")
	errCost      = errors.New("cost is out of range")
	errCredits   = errors.New("credits of a counter are out of range")
	errInstant   = errors.New("instant is out of range")
)

// clear removes what an earlier use of the call has left, beside the outcome.
func (c *Call) clear() { c.Err, c.lease = nil, leasing{} }

// Validate returns why an engine cannot decide the call. It changes nothing.
func (c *Call) Validate() error {
	if c.Cost < 0 {
		return errCost
	}
	if c.NowMS < 0 || c.NowMS > limit.MaxInstantMS {
		return errInstant
	}
	for i := range c.Counters {
		counter := &c.Counters[i]
		if !counter.Numbers.Valid() {
			return errNumbers
		}
		if counter.Credits != nil && (counter.Shadow || !counter.Credits.valid(&counter.Numbers)) {
			return errCredits
		}
		if counter.Cost < 0 || counter.Cost > 0 && !c.PerCounter {
			return errCost
		}
		for j := range i {
			if c.Counters[j].Same(counter) {
				return errDuplicate
			}
		}
	}
	return nil
}
