package dashboard

import "weir/internal/check"

// scenario is a traffic of the playground, made to measure for a limit and a window.
type scenario struct {
	Name, Title string
	Story       string // what comes
	Lesson      string // what to look at
	instants    func(limit, windowMS int64) []int64
}

var scenarios = []scenario{
	{
		Name: "edge", Title: "Burst at the window's edge",
		Story:    "A whole limit comes just before a window ends, and another just after.",
		Lesson:   "A fixed window forgets all at its edge, so twice the limit passes within moments. What slides remembers.",
		instants: edgeTraffic,
	},
	{
		Name: "steady", Title: "Steady, a bit too much",
		Story:  "Requests come evenly, half as many again as the limit allows.",
		Lesson: "Fixed windows let it through in blocks: first everything, then nothing. What slides or drains denies one in three, evenly, once it is full.",
		instants: func(limit, windowMS int64) []int64 {
			return evenly(limit*3/2+limit%2, 0, windowMS, playWindows*windowMS)
		},
	},
	{
		Name: "spammer", Title: "Spammer",
		Story:    "A client that does not listen: four times the limit, without a pause.",
		Lesson:   "A denied request uses nothing up, so hammering gains nothing and costs nothing. Try a penalty: then it costs.",
		instants: func(limit, windowMS int64) []int64 { return evenly(4*limit, 0, windowMS, playWindows*windowMS) },
	},
	{
		Name: "silence", Title: "Burst after silence",
		Story:    "A limit at once, a long silence, then two limits at once and a trickle.",
		Lesson:   "Raise the burst: the buckets then let more through at once to who was quiet, and the trickle after it goes on at the same rate.",
		instants: silenceTraffic,
	},
	{
		Name: "early", Title: "All of it early in the window",
		Story:    "The whole limit in the first moments of a window, and the whole of it once more in the middle of the next.",
		Lesson:   "The sliding window counter knows only how many came, not when, and takes them to be spread out: here it denies what the log, which knows, lets pass.",
		instants: earlyTraffic,
	},
	{
		Name: "ramp", Title: "Growing load",
		Story:  "From nothing to three times the limit.",
		Lesson: "See who begins to deny when, and how much more of the growing load passes afterwards: none.",
		instants: func(limit, windowMS int64) []int64 {
			return expand(check.Traffic{Pattern: check.Ramp, To: 3 * limit, PerMS: windowMS, DurationMS: playWindows * windowMS})
		},
	},
	{
		Name: "random", Title: "Honest, but random",
		Story:  "As many as allowed on average, at random moments, as real customers come.",
		Lesson: "Chance makes crowds: a limit just as high as the average denies honest customers. Leave room, or give the buckets a burst.",
		instants: func(limit, windowMS int64) []int64 {
			return expand(check.Traffic{Pattern: check.Poisson, Requests: limit, PerMS: windowMS, DurationMS: playWindows * windowMS, Seed: 7})
		},
	},
	{
		Name: "own", Title: "Nothing but your own hits",
		Story:    "Nobody comes but you.",
		Lesson:   "Press Hit in any rhythm, or the space bar while it has the focus, and watch who lets you in.",
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

// expand lists the instants of a traffic that fits the bounds of the playground.
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

// evenly is n requests in every per milliseconds, from the instant from until the instant to.
func evenly(n, from, per, to int64) []int64 {
	out := expand(check.Traffic{Pattern: check.Steady, Requests: n, PerMS: per, DurationMS: to - from})
	for i := range out {
		out[i] += from
	}
	return out
}

// edgeTraffic is a limit within a tenth of a window on either side of the first edge.
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
