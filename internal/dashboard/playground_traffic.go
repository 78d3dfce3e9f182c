package dashboard

import (
	"weir/internal/check"
)

// scenario is a kind of traffic in the playground, scaled to a limit and a window.
type scenario struct {
	Name, Title string
	Story       string // what comes
	Lesson      string // what to notice
	instants    func(limit, windowMS int64) []int64
}

var scenarios = []scenario{
	{
		Name: "edge", Title: "Burst at window edge",
		Story:    "A full limit arrives just before a window ends, and another one just after.",
		Lesson:   "A fixed window resets at its edge, so it allows twice the limit within moments. A sliding window does not.",
		instants: edgeTraffic,
	},
	{
		Name: "steady", Title: "Steady, over the limit",
		Story:  "Steady traffic at 150 % of the limit.",
		Lesson: "Fixed windows allow blocks: first everything, then nothing. Sliding windows and buckets deny one in three evenly once the limit is reached.",
		instants: func(limit, windowMS int64) []int64 {
			return evenly(limit*3/2+limit%2, 0, windowMS, playWindows*windowMS)
		},
	},
	{
		Name: "spammer", Title: "Spammer",
		Story:    "A client that ignores denials sends four times the limit without a pause.",
		Lesson:   "Denied requests use no units, so hammering has no effect. Add a penalty to make it costly.",
		instants: func(limit, windowMS int64) []int64 { return evenly(4*limit, 0, windowMS, playWindows*windowMS) },
	},
	{
		Name: "silence", Title: "Burst after silence",
		Story:    "A full limit at once, a long silence, then twice the limit at once and slow traffic.",
		Lesson:   "Raise the burst: buckets then allow more at once after a quiet time. The rate afterwards stays the same.",
		instants: silenceTraffic,
	},
	{
		Name: "early", Title: "Early in the window",
		Story:    "The full limit at the start of a window, and again in the middle of the next one.",
		Lesson:   "The sliding window counter assumes that requests are spread evenly. Here it denies requests that the exact log allows.",
		instants: earlyTraffic,
	},
	{
		Name: "ramp", Title: "Growing load",
		Story:  "Traffic grows from zero to three times the limit.",
		Lesson: "Compare when each algorithm starts to deny. After that, more load does not allow more requests.",
		instants: func(limit, windowMS int64) []int64 {
			return expand(check.Traffic{Pattern: check.Ramp, To: 3 * limit, PerMS: windowMS, DurationMS: playWindows * windowMS})
		},
	},
	{
		Name: "random", Title: "Random",
		Story:  "On average exactly the limit, at random times, like real customers.",
		Lesson: "Random traffic has bursts: a limit equal to the average denies some requests. Set a higher limit, or add a burst to a bucket.",
		instants: func(limit, windowMS int64) []int64 {
			return expand(check.Traffic{Pattern: check.Poisson, Requests: limit, PerMS: windowMS, DurationMS: playWindows * windowMS, Seed: 7})
		},
	},
	{
		Name: "own", Title: "Only your requests",
		Story:    "You send all requests.",
		Lesson:   "Press “Send request” in any rhythm, and watch which algorithms allow it.",
		instants: func(int64, int64) []int64 { return nil },
	},
}

func scenarioNamed(name string) *scenario {
	for i := range scenarios {
		if scenarios[i].Name == name {
			return &scenarios[i]
		}
	}
	return nil
}

// expand returns the instants of a traffic within the limits of the playground.
func expand(t check.Traffic) []int64 {
	t.Subjects, t.Request = []string{playSubject}, check.Request{Resource: "default", Cost: 1}
	requests, errs := t.Expand(0)
	if len(errs) > 0 {
		panic("dashboard: traffic of the playground: " + errs[0].Error())
	}
	out := make([]int64, len(requests))
	for i := range requests {
		out[i] = requests[i].AtMS
	}
	return out
}

// evenly returns n requests in every per milliseconds, from the instant from until the instant to.
func evenly(n, from, per, to int64) []int64 {
	out := expand(check.Traffic{Pattern: check.Steady, Requests: n, PerMS: per, DurationMS: to - from})
	for i := range out {
		out[i] += from
	}
	return out
}

// edgeTraffic returns one limit within a tenth of a window on each side of the first edge.
func edgeTraffic(limit, windowMS int64) []int64 {
	return append(evenly(limit, windowMS*9/10, windowMS/10, windowMS), evenly(limit, windowMS, windowMS/10, windowMS*11/10)...)
}

func silenceTraffic(limit, windowMS int64) []int64 {
	out := evenly(limit, windowMS/20, windowMS/20, windowMS/10)
	out = append(out, evenly(2*limit, windowMS*3/2, windowMS/10, windowMS*8/5)...)
	return append(out, evenly(max(limit/2, 1), windowMS*17/10, windowMS, playWindows*windowMS)...)
}

func earlyTraffic(limit, windowMS int64) []int64 {
	return append(evenly(limit, 0, windowMS/10, windowMS/10), evenly(2*limit, windowMS*11/10, windowMS, windowMS*8/5)...)
}
