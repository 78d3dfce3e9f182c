// Command pictures draws docs/img/ALGORITHM.svg: what each algorithm allows of the same traffic,
// decided by the real engine. Run it again after a change:
//
//	go run ./internal/engine/enginetest/pictures docs/img
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"weir/internal/engine"
	"weir/internal/limit"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: pictures DIR")
		os.Exit(2)
	}
	for _, a := range limit.Algorithms {
		name := filepath.Join(os.Args[1], fileName(a))
		if err := os.WriteFile(name, draw(a), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func fileName(a limit.Algorithm) string { return a.String() + ".svg" }

// The rule of all pictures: ten in ten seconds.
const (
	lim      = 10
	windowMS = 10_000
	spanMS   = 30_000
)

func numbers(a limit.Algorithm) limit.Numbers {
	n := limit.Numbers{Algorithm: a, Limit: lim, WindowMS: windowMS}
	if a.Bucket() {
		n.Burst = lim
	}
	if a == limit.SlidingWindowBuckets {
		n.PrecisionMS = windowMS / 5
	}
	return n
}

// request is a request of the traffic with its result. Instants are milliseconds from the left edge
// of the picture, which is the beginning of a window.
type request struct {
	at      int64
	allowed bool
	start   int64 // when it proceeds: later than at in a queue
}

// traffic is a single request, a burst on each side of a window's end, and then two requests per
// second.
func traffic() []request {
	all := []request{{at: 1_000}}
	for i := range int64(20) {
		all = append(all, request{at: 8_500 + 50*i})
	}
	for i := range int64(20) {
		all = append(all, request{at: 10_500 + 50*i})
	}
	for at := int64(12_000); at < spanMS; at += 500 {
		all = append(all, request{at: at})
	}
	return all
}

func decide(a limit.Algorithm) []request {
	const leftEdge = 1_704_672_000_000 // a multiple of the window
	eng := engine.NewMemory(engine.MemoryOptions{})
	all := traffic()
	for i := range all {
		call := engine.Call{
			NowMS: leftEdge + all[i].at, Cost: 1,
			Counters: []engine.Counter{{Key: "picture", Numbers: numbers(a)}},
		}
		eng.Evaluate(context.Background(), &call)
		if call.Err != nil {
			panic(call.Err) // numbers is invalid
		}
		all[i].allowed = call.Outcome.Allowed
		all[i].start = all[i].at + call.Outcome.Verdicts[0].DelayMS
	}
	return all
}
