package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// Awake time is time during which this process ran. An overloaded machine, or a container that has
// used up its CPU quota, can stop a process for longer than a timeout. When the process continues,
// every timer has expired, although the answers arrived long ago. The store was not silent in this
// case. Waits for the store are therefore measured by a clock that stops with the process: a
// goroutine advances it every awakeTick by the elapsed time, but by at most twice awakeTick.
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

// Awake returns the awake time of the process, with the precision of awakeTick.
func Awake() time.Duration {
	startAwake()
	return time.Duration(awakeNS.Load())
}

// awakeClock returns Awake as a time. Only differences of such times are meaningful.
func awakeClock() time.Time { return time.Unix(0, 0).Add(Awake()) }
