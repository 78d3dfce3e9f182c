package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"

	"weir/internal/check"
	"weir/internal/limit"
)

// trial is one rule with its requests.
type trial struct {
	Title    string
	Rule     limit.Rule
	StartMS  int64                    // the instant of AtMS 0, milliseconds since 1970
	SpanMS   int64                    // length of the chart, from AtMS 0
	Requests []check.SimulatedRequest // by time, within the span
	// Watch is the subject whose quota is drawn. All requests must then be of this subject, with
	// one resource and the same attributes. "": there are many subjects, and only allowed and
	// denied requests are drawn.
	Watch string
}

// timeline is the result of a rule for traffic, drawn by timelinePicture. All of it is computed by
// check.Simulate.
type timeline struct {
	Title                 string
	Rule                  limit.Rule
	SpanMS                int64
	Asked, Passed, Denied int64 // requests
	Hits                  []timelineHit
	Bins                  [timelineBins]timelineBin
	// Left is what remained at timelineSamples+1 instants, evenly distributed from 0 to SpanMS; nil
	// without a Watch. Steps are the instants at which it changed.
	Left  []int64
	Steps []timelineStep
	Quota int64 // the maximum of Left
	// Crowd is the maximum that was allowed within any one window; for a queue, that started.
	Crowd timelineCrowd
	Shut  []timelineStretch // periods in which a penalty denied everything
	Scale timelineScale
}

type timelineHit struct {
	AtMS, Cost            int64
	Allowed               bool
	RetryAfterMS, DelayMS int64
}

// startMS returns when an allowed request proceeds.
func (h timelineHit) startMS() int64 { return h.AtMS + h.DelayMS }

type timelineBin struct{ Passed, Denied int64 }

type timelineStep struct{ AtMS, Left int64 }

type timelineStretch struct{ FromMS, ToMS int64 }

// timelineCrowd is Count units that were allowed from FromMS to ToMS, both inclusive.
type timelineCrowd struct{ Count, FromMS, ToMS int64 }

// compare orders crowds by their number, and then by their duration.
func (c timelineCrowd) compare(other timelineCrowd) int {
	return cmp.Or(cmp.Compare(c.Count, other.Count), cmp.Compare(other.ToMS-other.FromMS, c.ToMS-c.FromMS))
}

// timelineScale is the height of the drawing, in requests per bin. Adjacent timelines share one, so
// that bars of the same height mean the same.
type timelineScale struct{ Passed, Denied int64 }

const (
	timelineBins    = 90  // of three windows, 30 bins each
	timelineSamples = 180 // two in a bin
)

// run decides the trial's requests, each as a check against this rule alone. Its errors are those
// of check.Simulate.
func (t *trial) run(ctx context.Context) (*timeline, error) {
	requests, peeks := t.withPeeks()
	out := &timeline{Title: t.Title, Rule: t.Rule, SpanMS: t.SpanMS, Hits: make([]timelineHit, 0, len(t.Requests))}
	err := check.Simulate(ctx, check.Simulation{
		Policy: check.PolicyData{Rules: []limit.Rule{t.Rule}}, StartMS: t.StartMS, Requests: requests,
	}, func(i int, d *check.Decision) error {
		at := requests[i].AtMS
		if peeks[i] {
			if len(d.Rules) > 0 {
				out.Quota = d.Rules[0].Quota
				out.Left = append(out.Left, d.Rules[0].Remaining)
				out.step(at, d.Rules[0].Remaining)
			}
			return nil
		}
		hit := timelineHit{AtMS: at, Cost: requests[i].Cost, Allowed: true}
		if len(d.Rules) > 0 {
			r := &d.Rules[0]
			hit.Allowed, hit.RetryAfterMS = r.Allowed, r.RetryAfterMS
			if r.Allowed {
				hit.DelayMS = r.DelayMS
			}
			if t.Watch != "" {
				out.step(at, r.Remaining)
			}
		}
		out.add(hit)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if t.Watch != "" {
		out.Crowd = out.crowd()
		out.Shut = out.shut()
	}
	out.Scale = out.ownScale()
	return out, nil
}

// withPeeks adds requests of cost 0 in between, which show what remains and take nothing.
func (t *trial) withPeeks() (all []check.SimulatedRequest, peeks []bool) {
	if t.Watch == "" {
		return t.Requests, make([]bool, len(t.Requests))
	}
	all = make([]check.SimulatedRequest, 0, len(t.Requests)+timelineSamples+1)
	peek := check.Request{Subject: t.Watch, Resource: "default"}
	if len(t.Requests) > 0 {
		peek = t.Requests[0].Request
	}
	peek.Cost = 0
	next := 0
	for k := range int64(timelineSamples + 1) {
		at := k * t.SpanMS / timelineSamples
		for ; next < len(t.Requests) && t.Requests[next].AtMS <= at; next++ {
			all, peeks = append(all, t.Requests[next]), append(peeks, false)
		}
		all, peeks = append(all, check.SimulatedRequest{AtMS: at, Request: peek}), append(peeks, true)
	}
	return all, peeks
}

func (t *timeline) step(at, left int64) {
	if last := len(t.Steps) - 1; last >= 0 && t.Steps[last].Left == left {
		return
	}
	t.Steps = append(t.Steps, timelineStep{at, left})
}

func (t *timeline) add(hit timelineHit) {
	t.Hits = append(t.Hits, hit)
	t.Asked++
	bin := &t.Bins[min(hit.AtMS*timelineBins/t.SpanMS, timelineBins-1)]
	if hit.Allowed {
		t.Passed++
		bin.Passed++
	} else {
		t.Denied++
		bin.Denied++
	}
}

// crowd returns the window in which most was allowed; of several, the shortest.
func (t *timeline) crowd() (most timelineCrowd) {
	var passed []timelineHit
	for _, h := range t.Hits {
		if h.Allowed && h.Cost > 0 {
			passed = append(passed, h)
		}
	}
	window := t.Rule.Window.MS
	first, sum := 0, int64(0)
	for _, h := range passed { // starts never overtake each other
		sum += h.Cost
		for passed[first].startMS() <= h.startMS()-window {
			sum -= passed[first].Cost
			first++
		}
		c := timelineCrowd{sum, passed[first].startMS(), h.startMS()}
		if c.compare(most) > 0 {
			most = c
		}
	}
	return most
}

// shut returns the periods in which a penalty ran.
func (t *timeline) shut() (out []timelineStretch) {
	if t.Rule.Penalty.MS == 0 {
		return nil
	}
	for _, h := range t.Hits {
		if h.Allowed || h.RetryAfterMS < 0 {
			continue
		}
		end := min(h.AtMS+h.RetryAfterMS, t.SpanMS)
		if last := len(out) - 1; last >= 0 && h.AtMS <= out[last].ToMS {
			out[last].ToMS = max(out[last].ToMS, end)
			continue
		}
		out = append(out, timelineStretch{h.AtMS, end})
	}
	return out
}

func (t *timeline) ownScale() (s timelineScale) {
	for _, b := range t.Bins {
		s.Passed, s.Denied = max(s.Passed, b.Passed), max(s.Denied, b.Denied)
	}
	return s
}

// shareScale gives adjacent timelines the same scale.
func shareScale(all []*timeline) {
	var s timelineScale
	for _, t := range all {
		s.Passed, s.Denied = max(s.Passed, t.Scale.Passed), max(s.Denied, t.Scale.Denied)
	}
	for _, t := range all {
		t.Scale = s
	}
}

// The drawing is timelineWidth wide and timelineHeight high, and stretched to its place. The upper
// part shows what remains, the lower part what was allowed (up) and denied (down).
const (
	timelineWidth   = 1000
	timelineHeight  = 120
	timelineLevel   = 44 // height of the upper part
	timelineBarsTop = 54
)

func (t *timeline) x(ms int64) float64 { return float64(ms) * timelineWidth / float64(t.SpanMS) }

// baseline returns the line between the bars.
func (t *timeline) baseline() float64 {
	return timelineBarsTop + float64(t.Scale.Passed)*t.unit()
}

// unit returns the height of one request.
func (t *timeline) unit() float64 {
	const space = timelineHeight - timelineBarsTop
	return min(space/float64(max(t.Scale.Passed+t.Scale.Denied, 1)), space/4) // a lone request is no tower
}

// number formats a coordinate: a tenth of a unit is finer than a screen.
func number(f float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0")
}

// LevelPath returns the area below the remaining units.
func (t *timeline) LevelPath() string {
	if len(t.Steps) == 0 {
		return ""
	}
	return "M0 " + number(timelineLevel) + t.levelSteps() + "V" + number(timelineLevel) + "Z"
}

// LevelLine returns its upper edge.
func (t *timeline) LevelLine() string {
	if len(t.Steps) == 0 {
		return ""
	}
	return "M0" + strings.Replace(t.levelSteps(), "V", " ", 1)
}

func (t *timeline) levelSteps() string {
	var b strings.Builder
	y := func(left int64) string {
		return number(timelineLevel - float64(left)*(timelineLevel-2)/float64(max(t.Quota, 1)))
	}
	for i, s := range t.Steps {
		if i > 0 {
			b.WriteString("H" + number(t.x(s.AtMS)))
		}
		b.WriteString("V" + y(s.Left))
	}
	b.WriteString("H" + strconv.Itoa(timelineWidth))
	return b.String()
}

// PassedPath returns the bars of allowed requests.
func (t *timeline) PassedPath() string {
	return t.bars(func(b timelineBin) float64 { return -float64(b.Passed) })
}

// DeniedPath returns the bars of denied requests, below the baseline.
func (t *timeline) DeniedPath() string {
	return t.bars(func(b timelineBin) float64 { return float64(b.Denied) })
}

func (t *timeline) bars(height func(timelineBin) float64) string {
	const wide = float64(timelineWidth) / timelineBins
	var b strings.Builder
	for i, bin := range t.Bins {
		if h := height(bin); h != 0 {
			b.WriteString("M" + number(float64(i)*wide+1) + " " + number(t.baseline()) +
				"v" + number(h*t.unit()) + "h" + number(wide-2) + "V" + number(t.baseline()) + "z")
		}
	}
	return b.String()
}

// Baseline returns the line between allowed and denied requests.
func (t *timeline) Baseline() string {
	return "M0 " + number(t.baseline()) + "H" + strconv.Itoa(timelineWidth)
}

// StartsPath returns marks where a queue lets its requests proceed.
func (t *timeline) StartsPath() string {
	var b strings.Builder
	if t.Rule.Algorithm != limit.LeakyBucketQueue {
		return ""
	}
	for _, h := range t.Hits {
		if h.Allowed && h.startMS() <= t.SpanMS {
			b.WriteString("M" + number(t.x(h.startMS())) + " " + number(timelineLevel+2) + "v7")
		}
	}
	return b.String()
}

// EdgesPath returns a line at the end of each window.
func (t *timeline) EdgesPath() string {
	var b strings.Builder
	for at := t.Rule.Window.MS; at > 0 && at < t.SpanMS && at/t.Rule.Window.MS <= 30; at += t.Rule.Window.MS {
		b.WriteString("M" + number(t.x(at)) + " 0V" + strconv.Itoa(timelineHeight))
	}
	return b.String()
}

// box is a period in the drawing, wide enough to be visible.
type box struct{ X, Width string }

func (t *timeline) box(s timelineStretch) box {
	from := t.x(s.FromMS)
	wide := max(t.x(s.ToMS)-from, 8)
	return box{number(min(from, timelineWidth-wide)), number(wide)}
}

// ShutBoxes returns the periods in which a penalty was active.
func (t *timeline) ShutBoxes() (out []box) {
	for _, s := range t.Shut {
		out = append(out, t.box(s))
	}
	return out
}

// CrowdBox returns where more than the limit was allowed within one window; false if nowhere.
func (t *timeline) CrowdBox() (box, bool) {
	if t.Crowd.Count <= t.Rule.Limit {
		return box{}, false
	}
	return t.box(timelineStretch{t.Crowd.FromMS, t.Crowd.ToMS}), true
}

// Ticks returns the labels of the time axis, from 0 to the end.
func (t *timeline) Ticks() (out []string) {
	for k := range int64(4) {
		out = append(out, clockText(k*t.SpanMS/3, t.SpanMS))
	}
	return out
}

// Slice is the result of the requests of one period, for a table.
type timelineSlice struct {
	From, To              string
	Asked, Passed, Denied int64
	Left                  int64 // at the end
}

const timelineSlices = 15 // six bins each

// Slices returns the chart as a table.
func (t *timeline) Slices() []timelineSlice {
	out := make([]timelineSlice, timelineSlices)
	for i := range int64(timelineSlices) {
		s := &out[i]
		s.From, s.To = clockText(i*t.SpanMS/timelineSlices, t.SpanMS), clockText((i+1)*t.SpanMS/timelineSlices, t.SpanMS)
		const each = timelineBins / timelineSlices
		for _, b := range t.Bins[i*each : (i+1)*each] {
			s.Passed, s.Denied = s.Passed+b.Passed, s.Denied+b.Denied
		}
		s.Asked = s.Passed + s.Denied
		if t.Left != nil {
			s.Left = t.Left[(i+1)*timelineSamples/timelineSlices]
		}
	}
	return out
}

// PassedBits returns for each request, in order, whether it was allowed, for the script that plays
// the chart.
func (t *timeline) PassedBits() string {
	b := make([]byte, len(t.Hits))
	for i, h := range t.Hits {
		b[i] = '0'
		if h.Allowed {
			b[i] = '1'
		}
	}
	return string(b)
}

// LeftList is Left for the same script.
func (t *timeline) LeftList() string { return joined(t.Left) }

func joined(numbers []int64) string {
	b := make([]byte, 0, 4*len(numbers))
	for i, n := range numbers {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, n, 10)
	}
	return string(b)
}

// onlyAt returns requests of one subject at these instants, with cost 1, sorted by time.
func onlyAt(subject string, instants []int64) []check.SimulatedRequest {
	slices.Sort(instants)
	out := make([]check.SimulatedRequest, len(instants))
	for i, at := range instants {
		out[i] = check.SimulatedRequest{AtMS: at, Request: check.Request{Subject: subject, Resource: "default", Cost: 1}}
	}
	return out
}
