package dashboard

import (
	"slices"
	"time"

	"weir/internal/usage"
)

// replayColumns is the largest number of columns in the picture of a replay.
const replayColumns = 90

// replayTop and replayBottom are the edges of the columns, in percent of the picture.
const replayTop, replayBottom = 5.0, 84.0

// columnsFor makes the columns of the picture, each of the same number of periods.
func (view *replayView) columnsFor(d *demand) {
	each := (d.stretches() + replayColumns - 1) / replayColumns
	view.chart = chart{stretch: stretch{Grain: grainOfStep(d.step), From: d.from, To: d.to}, Bars: make([]bar, (d.stretches()+each-1)/each)}
}

func grainOfStep(step time.Duration) usage.Grain {
	for _, g := range usage.Grains {
		if g.Duration() == step {
			return g
		}
	}
	return usage.Day
}

// addChecks adds checks at a period of demand, which no limit can deny, to the picture.
func (view *replayView) addChecks(d *demand, checks []int64) {
	if n := len(view.chart.Bars); n > 0 {
		for i, sum := range checks {
			view.chart.Bars[i*n/d.stretches()].Allowed += sum
		}
	}
}

// addRequest adds the decision of a request to the picture; at and span are milliseconds.
func (view *replayView) addRequest(at, span, checks int64, allowed bool) {
	n := int64(len(view.chart.Bars))
	if n == 0 {
		return
	}
	b := &view.chart.Bars[min(at*n/span, n-1)]
	if allowed {
		b.Allowed += checks
	} else {
		b.Denied += checks
	}
}

// Drawn reports whether there is anything to draw.
func (view *replayView) Drawn() bool {
	return slices.ContainsFunc(view.chart.Bars, func(b bar) bool { return b.Allowed+b.Denied > 0 })
}

// Most is the top of the scale.
func (view *replayView) Most() int64 {
	most := int64(0)
	for i := range view.chart.Bars {
		most = max(most, view.chart.Bars[i].Allowed+view.chart.Bars[i].Denied)
	}
	return roundScale(most)
}

// replayBar is where one column of the picture is: allowed checks, and above them the denied ones.
type replayBar struct{ Allowed, Denied column }

// Column returns the place of a column. A number above 0 is visible.
func (view *replayView) Column(b *bar, most int64) replayBar {
	const space = replayBottom - replayTop
	height := func(n int64) float64 {
		if n == 0 {
			return 0
		}
		return max(1, space*float64(n)/float64(most))
	}
	allowed, denied := height(b.Allowed), height(b.Denied)
	return replayBar{
		Allowed: column{percentage(replayBottom - allowed), percentage(allowed)},
		Denied:  column{percentage(replayBottom - allowed - denied), percentage(denied)},
	}
}

// DeniedClass is the colour of what the rule would deny: a rule in shadow only reports it.
func (view *replayView) DeniedClass() string {
	if view.Shadow {
		return "shadowed"
	}
	return "denied"
}
