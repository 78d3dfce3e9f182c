package dashboard

import (
	"time"

	"weir/internal/tenants"
)

// chart is checks over time, one bar for each stretch.
type chart struct {
	Title, Unit     string // "minute": the length of a stretch
	Bars            []bar
	Allowed, Denied int64 // in all
	From, To        time.Time
}

// bar is one stretch. The drawing is barWidth units wide for each bar and chartHeight high, and
// is stretched to the place that there is.
type bar struct {
	Start           time.Time
	Allowed, Denied int64
	X               int64
	AllowedY, AllowedHeight,
	DeniedY, DeniedHeight int64
}

const (
	barWidth    = 10
	chartHeight = 1000
)

// newChart fills in the stretches in which nothing was asked.
func newChart(title, unit string, step time.Duration, report tenants.UsageReport) chart {
	c := chart{Title: title, Unit: unit, From: report.From, To: report.To}
	counts := map[time.Time]tenants.UsageItem{}
	var most int64
	for _, item := range report.Items {
		counts[item.Start.UTC()] = item
		most = max(most, item.Allowed+item.Denied)
	}
	for start := report.From; start.Before(report.To); start = start.Add(step) {
		item := counts[start.UTC()]
		b := bar{Start: start, Allowed: item.Allowed, Denied: item.Denied, X: int64(len(c.Bars)) * barWidth}
		b.AllowedHeight, b.DeniedHeight = barHeight(item.Allowed, most), barHeight(item.Denied, most)
		b.AllowedY = chartHeight - b.AllowedHeight
		b.DeniedY = max(0, b.AllowedY-b.DeniedHeight)
		c.Allowed, c.Denied = c.Allowed+item.Allowed, c.Denied+item.Denied
		c.Bars = append(c.Bars, b)
	}
	return c
}

// barHeight is never nothing for what is not nothing.
func barHeight(n, most int64) int64 {
	if n == 0 {
		return 0
	}
	const room = chartHeight - 40 // so that two bars of the least height fit
	return max(15, int64(float64(n)/float64(most)*room))
}

// Clock is the time of day at a stretch's start.
func (b bar) Clock() string { return b.Start.UTC().Format("15:04") }

// Label says a stretch in words.
func (b bar) Label() string {
	return b.Clock() + " UTC: " + grouped(b.Allowed) + " allowed, " + grouped(b.Denied) + " denied"
}

// Width is that of the drawing.
func (c *chart) Width() int64 { return int64(len(c.Bars)) * barWidth }

// Summary says the whole in words.
func (c *chart) Summary() string {
	return c.Title + ": " + grouped(c.Allowed) + " checks allowed, " + grouped(c.Denied) + " denied, by the " + c.Unit
}
