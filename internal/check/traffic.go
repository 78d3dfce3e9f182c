package check

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"weir/internal/limit"
)

// Pattern is how generated traffic is distributed over time. The zero value is not a pattern.
type Pattern uint8

// The patterns of Traffic.
const (
	// Steady spreads Requests evenly over every PerMS.
	Steady Pattern = iota + 1
	// Burst sends Requests at once, at each instant of AtMS.
	Burst
	// Ramp changes the rate linearly from From to To requests in PerMS.
	Ramp
	// Poisson sends Requests in PerMS on average, each independent of the others, by Seed.
	Poisson
	// WindowEdge sends Requests in the last millisecond of a window and again in the first of the
	// next. Fixed windows allow twice the limit of this traffic.
	WindowEdge
)

var patternNames = limit.Names[Pattern]{
	Steady: "steady", Burst: "burst", Ramp: "ramp", Poisson: "poisson", WindowEdge: "window_edge",
}

func (p Pattern) String() string { return patternNames.Of(p) }

// ParsePattern returns the pattern with a name such as "window_edge".
func ParsePattern(s string) (Pattern, error) { return patternNames.Parse(s) }

// Traffic describes the requests of a simulation. Every subject sends the full pattern. A number
// that is 0 is not given.
type Traffic struct {
	Pattern    Pattern
	Request    Request  // the request to send; its Subject is replaced
	Subjects   []string // 1 to MaxTrafficSubjects, without duplicates
	Requests   int64    // not in Ramp: 1 to MaxSimulatedRequests
	PerMS      int64    // Steady, Ramp, Poisson: 1 to MaxWindowMS
	DurationMS int64    // Steady, Ramp, Poisson: the end; 1 to MaxWindowMS
	From, To   int64    // Ramp: 0 to MaxSimulatedRequests, not both 0
	AtMS       []int64  // Burst: the instants, milliseconds after the start, 0 to MaxWindowMS
	WindowMS   int64    // WindowEdge: MinWindowMS to MaxWindowMS; windows begin at multiples of it since 1970
	Edges      int64    // WindowEdge: number of consecutive window ends; 1 to MaxTrafficEdges
	Seed       uint64   // Poisson: the same seed gives the same requests
}

// Limits of generated traffic.
const (
	MaxSimulatedRequests = 10_000 // in all
	MaxTrafficSubjects   = 1_000
	MaxTrafficEdges      = 1_000
)

// trafficFields lists the numbers that each pattern needs. Other numbers are invalid.
var trafficFields = map[Pattern][]string{
	Steady:     {"requests", "per_ms", "duration_ms"},
	Burst:      {"requests", "at_ms"},
	Ramp:       {"from", "to", "per_ms", "duration_ms"},
	Poisson:    {"requests", "per_ms", "duration_ms"},
	WindowEdge: {"requests", "window_ms", "edges"},
}

// Expand lists the requests of t for a simulation that starts at startMS, ordered by time and then
// by subject as in t. Errors name the fields as in docs/simulate.md.
func (t *Traffic) Expand(startMS int64) ([]SimulatedRequest, []limit.FieldError) {
	if errs := t.validate(); len(errs) > 0 {
		return nil, errs
	}
	var requests []SimulatedRequest
	for i, subject := range t.Subjects {
		times, ok := t.times(startMS, uint64(i), MaxSimulatedRequests-len(requests))
		if !ok {
			var errs limit.FieldErrors
			errs.Add("", limit.Wrong("Use fewer subjects, or a shorter or slower pattern.", "describes more than %d requests", MaxSimulatedRequests))
			return nil, errs
		}
		for _, at := range times {
			r := SimulatedRequest{AtMS: at, Request: t.Request}
			r.Subject = subject
			requests = append(requests, r)
		}
	}
	slices.SortStableFunc(requests, func(a, b SimulatedRequest) int { return cmp.Compare(a.AtMS, b.AtMS) })
	return requests, nil
}

func (t *Traffic) validate() []limit.FieldError {
	var errs limit.FieldErrors
	needed, known := trafficFields[t.Pattern]
	if !known {
		errs.Add("pattern", limit.OneOf("burst, poisson, ramp, steady, window_edge"))
		return errs
	}
	number := func(field string, n, least, most int64) {
		switch takes := slices.Contains(needed, field); {
		case takes && (n < least || n > most):
			errs.Add(field, limit.MustBe("a whole number from %d to %d with the pattern %s", least, most, t.Pattern))
		case !takes && n != 0:
			errs.Add(field, t.notForPattern())
		}
	}
	number("requests", t.Requests, 1, MaxSimulatedRequests)
	number("per_ms", t.PerMS, 1, limit.MaxWindowMS)
	number("duration_ms", t.DurationMS, 1, limit.MaxWindowMS)
	number("from", t.From, 0, MaxSimulatedRequests)
	number("to", t.To, 0, MaxSimulatedRequests)
	number("window_ms", t.WindowMS, limit.MinWindowMS, limit.MaxWindowMS)
	number("edges", t.Edges, 1, MaxTrafficEdges)
	if t.Pattern == Ramp && t.From == 0 && t.To == 0 {
		errs.Add("to", limit.MustBe("at least 1 if from is 0"))
	}
	if t.Pattern != Poisson && t.Seed != 0 {
		errs.Add("seed", t.notForPattern())
	}
	t.validateInstants(&errs)
	t.validateSubjects(&errs)
	return errs
}

// notForPattern is the problem of a field that the pattern does not use.
func (t *Traffic) notForPattern() *limit.Problem {
	return limit.Wrong("Omit it, or use a pattern that has it.", "is not for the pattern %s", t.Pattern)
}

func (t *Traffic) validateInstants(errs *limit.FieldErrors) {
	if t.Pattern != Burst {
		if len(t.AtMS) > 0 {
			errs.Add("at_ms", t.notForPattern())
		}
		return
	}
	if len(t.AtMS) == 0 || len(t.AtMS) > MaxSimulatedRequests {
		errs.Add("at_ms", limit.MustBe("a list of 1 to %d instants, in milliseconds after the start", MaxSimulatedRequests))
		return
	}
	for _, at := range t.AtMS {
		if at < 0 || at > limit.MaxWindowMS {
			errs.Add("at_ms", limit.MustBe("a list of whole numbers from 0 to %d", limit.MaxWindowMS))
			return
		}
	}
}

func (t *Traffic) validateSubjects(errs *limit.FieldErrors) {
	if len(t.Subjects) == 0 || len(t.Subjects) > MaxTrafficSubjects {
		errs.Add("subjects", limit.MustBe("1 to %d subjects", MaxTrafficSubjects))
		return
	}
	seen := make(map[string]bool, len(t.Subjects))
	for _, s := range t.Subjects {
		if problem := limit.ValidName(s); problem != nil {
			errs.Add("subjects", limit.Wrong("Correct the subject: it "+problem.Message+".", "has a subject that %s", problem.Message))
			return
		}
		if seen[s] {
			errs.Add("subjects", limit.Wrong(limit.Duplicate.Fix, "has a duplicate subject"))
			return
		}
		seen[s] = true
	}
}

// times returns the instants of the requests of one subject, in order; ok is false if there are
// more than most.
func (t *Traffic) times(startMS int64, subject uint64, most int) (times []int64, ok bool) {
	switch t.Pattern {
	case Burst:
		instants := slices.Clone(t.AtMS)
		slices.Sort(instants)
		return t.atOnce(instants, most)
	case WindowEdge:
		edge := (startMS/t.WindowMS+1)*t.WindowMS - startMS
		instants := make([]int64, 0, 2*t.Edges)
		for range t.Edges {
			instants = append(instants, edge-1, edge)
			edge += t.WindowMS
		}
		return t.atOnce(instants, most)
	}
	next := t.arrivals(subject)
	for k := int64(0); ; k++ {
		at := next(k)
		if !(at < float64(t.DurationMS)) { // a ramp whose rate has fallen to 0 returns NaN
			return times, true
		}
		if len(times) == most {
			return nil, false
		}
		times = append(times, int64(at))
	}
}

// atOnce returns Requests requests at each instant.
func (t *Traffic) atOnce(instants []int64, most int) (times []int64, ok bool) {
	if t.Requests*int64(len(instants)) > int64(most) {
		return nil, false
	}
	for _, at := range instants {
		times = append(times, slices.Repeat([]int64{at}, int(t.Requests))...)
	}
	return times, true
}

// arrivals returns a function that returns the time of request k, in milliseconds after the start.
// It must be called with 0, 1, 2 and so on. Every product is converted to float64, so that it is
// not fused with a sum, which would give other instants on other processors.
func (t *Traffic) arrivals(subject uint64) func(k int64) float64 {
	per := float64(t.PerMS)
	switch t.Pattern {
	case Ramp:
		from, slope := float64(t.From), float64(t.To-t.From)/float64(t.DurationMS)
		return func(k int64) float64 {
			if k == 0 {
				return 0
			}
			// Until the instant x, there are from*x + slope*x*x/2 requests, in units of 1/per.
			area := float64(float64(k) * per)
			root := math.Sqrt(float64(from*from) + float64(2*slope*area))
			return float64(2*area) / (from + root)
		}
	case Poisson:
		random := rand.New(rand.NewPCG(t.Seed, subject))
		mean, at := per/float64(t.Requests), 0.0
		return func(int64) float64 {
			at += float64(random.ExpFloat64() * mean)
			return at
		}
	default: // Steady
		return func(k int64) float64 { return float64(k * t.PerMS / t.Requests) }
	}
}
