package api

import (
	"runtime"
	"time"

	"golang.org/x/time/rate"
)

// A body can arrive in very many parts: chunks of HTTP/1.1, or frames of HTTP/2. A part of a few
// bytes takes half a microsecond to read, also one of a body that nobody wants. So 16 connections
// of a client without an API key, with bodies of 30 000 parts each, would take all processors.
// Parts are therefore read at a rate that takes some hundredths of each processor. Parts of a KiB
// are not counted: they take less than their bytes.

const (
	// longPart is how many bytes of a connection have a part that is not counted.
	longPart = 1 << 10
	// partsPerSecond is how many parts are read in a second, for each processor. A client that
	// sends each row of a table in a part of its own needs more time for that.
	partsPerSecond = 100_000
	// partPatience is how long a connection waits at most, to be read later if it is still there.
	partPatience = 2 * time.Second
)

// parts are those of all connections of the process.
var parts = newPartRate(runtime.GOMAXPROCS(0))

type partRate struct{ limiter *rate.Limiter }

func newPartRate(processors int) partRate {
	return partRate{rate.NewLimiter(rate.Limit(partsPerSecond*processors), partsPerSecond*processors/10)}
}

// wait waits until so many parts may be read.
func (p partRate) wait(n int) {
	if n <= 0 {
		return
	}
	r := p.limiter.ReserveN(time.Now(), min(n, p.limiter.Burst()))
	delay := r.Delay()
	if delay > partPatience {
		r.Cancel()
		delay = partPatience
	}
	time.Sleep(delay)
}
