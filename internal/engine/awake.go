package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// Awake time is time during which this process ran. A machine that is overloaded, or a container
// that has used up its CPU quota, stops a process for longer than a deadline; when it goes on,
// every timer has run out, though the answers have long been there. That is no silence of the
// store, so waits for it are measured by a clock that stands still meanwhile: a goroutine advances
// it every awakeTick by what has passed, but by no more than twice that.
var awakeNS atomic.Int64

const AwakeTick = 5 * time.Millisecond

var startAwake = sync.OnceFunc(func() {
	go func() {
		last := time.Now()
		for now := range time.Tick(AwakeTick) {
			awakeNS.Add(int64(min(now.Sub(last), 2*AwakeTick)))
			last = now
		}
	}()
})

// awake returns the awake time of the process, to within awakeTick.
func Awake() time.Duration {
	startAwake()
	return time.Duration(awakeNS.Load())
}

// awakeClock is awake as a clock, for differences only.
func awakeClock() time.Time { return time.Unix(0, 0).Add(Awake()) }
