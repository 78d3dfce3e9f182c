package dashboard

import (
	"context"
	"math"
	"strconv"
	"strings"
	"time"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// stretch is a period in whole grains.
type stretch struct {
	Grain    usage.Grain
	From, To time.Time
	Now      time.Time // its grain is not over yet
	Before   bool      // whether usage of the previous period is also stored
}

// stretchUntil returns the period with this number of grains that ends with the current one.
func stretchUntil(now time.Time, grain usage.Grain, grains int) stretch {
	length := grain.Duration()
	to := now.UTC().Truncate(length).Add(length)
	return newStretch(now, grain, to.Add(-time.Duration(grains)*length), to)
}

// newStretch returns a period rounded outward to whole grains.
func newStretch(now time.Time, grain usage.Grain, from, to time.Time) stretch {
	length := grain.Duration()
	s := stretch{Grain: grain, From: from.UTC().Truncate(length), To: to.UTC().Truncate(length), Now: now}
	if s.To.Before(to) {
		s.To = s.To.Add(length)
	}
	s.Before = !s.earlier().Before(now.Add(-tenants.UsageRetention(grain)).Truncate(length))
	return s
}

// earlier returns the start of the previous period.
func (s stretch) earlier() time.Time { return s.From.Add(-s.To.Sub(s.From)) }

// compared returns the start of the period with the previous one, if that is stored.
func (s stretch) compared() time.Time {
	if s.Before {
		return s.earlier()
	}
	return s.From
}

// count returns the number of grains.
func (s stretch) count() int { return int(s.To.Sub(s.From) / s.Grain.Duration()) }

// chart shows checks over time, one bar per grain, compared with the previous period. Allowed and
// denied checks have their own scales, so that neither hides the other.
type chart struct {
	stretch
	Title           string
	Bars            []bar
	Allowed, Denied int64 // totals
	Shadow, Degrade int64 // checks that rules in shadow would have denied, and those in degraded mode
	Overlapping     bool  // a check may be in several parts, so that its parts exceed the checks
	BeforeAllowed   int64 // totals of the previous period
	BeforeDenied    int64
	BeforeUnknown   bool   // there may have been more in the previous period
	Zoom            string // the page that shows a part of the period; "" if there is none
	Whole           string // the page that shows the whole period again; "" if it does
	Log             bool   // logarithmic scales
	Scale           string // the page with the other kind of scale; "" if there is none
	Decisions       string // the page of decisions, to which a script adds from and to; "" if there is none
	Marks           []chartMark
	Parts           []splitPart // groups of the allowed checks, stacked; nil: they are not split
	Periods         []chartPeriod
	Limit           *limitLine // nil: none can be compared with the bars
	Source          string     // says where the numbers come from; "" if that needs no words
}

// chartPeriod is a link to the chart of another period.
type chartPeriod struct {
	Name, Path string
	Current    bool
}

// bar is one grain. The coordinates are those of small charts, which stack denied on allowed: each
// bar is barWidth units wide, the chart is chartHeight units high and is stretched to its place.
type bar struct {
	Start                       time.Time
	Allowed, Denied             int64
	BeforeAllowed, BeforeDenied int64
	Missing                     int64 // how many more checks there may have been
	X                           int64
	AllowedY, AllowedHeight,
	DeniedY, DeniedHeight int64
}

const (
	barWidth    = 10
	chartHeight = 1000
)

// series reads the numbers of a chart for a query and a period.
func (d *dashboard) series(ctx context.Context, a tenants.Actor, title string, s stretch, query tenants.UsageQuery) (chart, error) {
	c, _, err := d.seriesWithReport(ctx, a, title, s, query)
	return c, err
}

// seriesWithReport is series that also returns the report, with the items of the previous period.
func (d *dashboard) seriesWithReport(ctx context.Context, a tenants.Actor, title string, s stretch, query tenants.UsageQuery) (chart, tenants.UsageReport, error) {
	query.Grain, query.From, query.To = s.Grain, s.compared(), s.To
	report, err := d.Store.Usage(ctx, a, query)
	return newChart(title, s, report.Items), report, err
}

// newChart fills in the grains without checks.
func newChart(title string, s stretch, items []tenants.UsageItem) chart {
	c := chart{stretch: s, Title: title, Bars: make([]bar, s.count())}
	length := s.Grain.Duration()
	for i := range c.Bars {
		c.Bars[i].Start, c.Bars[i].X = s.From.Add(time.Duration(i)*length), int64(i)*barWidth
	}
	for i := range items {
		item := &items[i]
		if at := int(item.Start.Sub(s.From) / length); at >= 0 && !item.Start.Before(s.From) && at < len(c.Bars) {
			c.Bars[at].Allowed += item.Allowed
			c.Bars[at].Denied += item.Denied
			c.Allowed, c.Denied = c.Allowed+item.Allowed, c.Denied+item.Denied
			c.Shadow, c.Degrade = c.Shadow+item.ShadowDenied, c.Degrade+item.Degraded
		} else if at := int(item.Start.Sub(s.earlier()) / length); at >= 0 && at < len(c.Bars) {
			c.Bars[at].BeforeAllowed += item.Allowed
			c.Bars[at].BeforeDenied += item.Denied
			c.BeforeAllowed, c.BeforeDenied = c.BeforeAllowed+item.Allowed, c.BeforeDenied+item.Denied
		}
	}
	c.draw()
	return c
}

func (c *chart) draw() {
	most := int64(1)
	for i := range c.Bars {
		b := &c.Bars[i]
		most = max(most, b.Allowed+b.Denied)
	}
	for i := range c.Bars {
		b := &c.Bars[i]
		b.AllowedHeight, b.DeniedHeight = barHeight(b.Allowed, most), barHeight(b.Denied, most)
		b.AllowedY = chartHeight - b.AllowedHeight
		b.DeniedY = max(0, b.AllowedY-b.DeniedHeight)
	}
}

// barHeight is visible for every number above 0.
func barHeight(n, most int64) int64 {
	if n == 0 {
		return 0
	}
	const space = chartHeight - 40 // leaves space for two bars of minimal height
	return max(15, int64(float64(n)/float64(most)*space))
}

// Clock names a grain by its start.
func (c *chart) Clock(at time.Time) string { return clockOf(c.Grain, at) }

func clockOf(g usage.Grain, at time.Time) string {
	switch g {
	case usage.Minute:
		return at.UTC().Format("15:04")
	case usage.Hour:
		return at.UTC().Format("2 Jan, 15:04")
	default:
		return at.UTC().Format("2 Jan")
	}
}

// Label describes a bar in words.
func (c *chart) Label(b *bar) string {
	text := c.Clock(b.Start) + " UTC: " + grouped(b.Allowed) + " allowed, " + grouped(b.Denied) + " denied"
	if b.Unknown() {
		text = c.Clock(b.Start) + " UTC: not known, at most " + plural(b.Missing, "check", "checks")
	}
	if c.Before {
		text += "; previous period: " + grouped(b.BeforeAllowed) + " allowed, " + grouped(b.BeforeDenied) + " denied"
	}
	return text
}

// Unknown reports whether nothing is known of a grain but the most checks that it may have.
func (b *bar) Unknown() bool { return b.Missing > 0 && b.Allowed+b.Denied == 0 }

// Unknowns is the number of grains of which nothing is known.
func (c *chart) Unknowns() (n int) {
	for i := range c.Bars {
		if c.Bars[i].Unknown() {
			n++
		}
	}
	return n
}

// Width is that of a small chart.
func (c *chart) Width() int64 { return int64(len(c.Bars)) * barWidth }

// The areas of the drawing, in percent of its height: allowed checks, denied checks below.
const (
	plotTop, plotBottom     = 4.0, 62.0
	deniedTop, deniedBottom = 72.0, 89.0
)

func percentage(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) + "%" }

// MostAllowed is the top of the upper scale.
func (c *chart) MostAllowed() int64 {
	most := int64(0)
	for i := range c.Bars {
		most = max(most, c.Bars[i].Allowed, c.partsOf(i))
		if c.BeforeDrawn() {
			most = max(most, c.Bars[i].BeforeAllowed)
		}
	}
	if c.Limit != nil && !c.limitAbove(most) {
		for _, p := range c.Limit.Parts {
			most = max(most, p.Limit+p.Limit/20)
		}
	}
	return roundScale(most)
}

// BeforeDrawn reports whether the line of the previous period is drawn: on the scale of parts that
// overlap, it would be too low.
func (c *chart) BeforeDrawn() bool { return c.Before && c.BeforeAllowed > 0 && !c.Overlapping }

// MostDenied is the top of the lower scale.
func (c *chart) MostDenied() int64 {
	most := int64(0)
	for i := range c.Bars {
		most = max(most, c.Bars[i].Denied)
	}
	return roundScale(most)
}

// roundScale returns the next number that is suitable for the top of a scale and its middle.
func roundScale(most int64) int64 {
	for unit := int64(1); ; unit *= 10 {
		for _, n := range []int64{2, 4, 6, 10} {
			if n*unit >= most {
				return n * unit
			}
		}
	}
}

// Left and Wide return the position of a bar; Slot is the whole width of its grain.
func (c *chart) Left(i int) string {
	return percentage((float64(i) + 0.12) * 100 / float64(len(c.Bars)))
}
func (c *chart) Wide() string { return percentage(76 / float64(len(c.Bars))) }
func (c *chart) SlotX(i int) string {
	return percentage(float64(i) * 100 / float64(len(c.Bars)))
}
func (c *chart) Slot() string { return percentage(100 / float64(len(c.Bars))) }

// column is a bar from y down to the base of its area. It is visible for every number above 0.
type column struct{ Y, Height string }

func (c *chart) columnOf(n, most int64, top, bottom float64) column {
	if n == 0 {
		return column{percentage(bottom), "0"}
	}
	height := max(0.9, c.share(n, most)*(bottom-top))
	return column{percentage(bottom - height), percentage(height)}
}

// share returns the height of a number in a scale up to most, from 0 to 1.
func (c *chart) share(n, most int64) float64 {
	if c.Log {
		return math.Log1p(float64(n)) / math.Log1p(float64(max(most, 1)))
	}
	return float64(n) / float64(max(most, 1))
}

// level is a line of a scale.
type level struct {
	Y    float64 // percent
	Text string
}

// levels returns the lines of a scale up to most, except for that of 0: the top and, with enough
// space, the middle. A logarithmic scale has powers of ten.
func (c *chart) levels(most int64, top, bottom float64) (out []level) {
	const space = 6 // percent that a label needs
	if !c.Log {
		out = append(out, level{top, compact(most)})
		if bottom-top >= 3*space {
			out = append(out, level{(top + bottom) / 2, compact(most / 2)})
		}
		return out
	}
	highest := int64(1)
	for highest <= most/10 {
		highest *= 10
	}
	last := bottom
	for n := int64(1); n <= highest; n *= 10 {
		y := bottom - c.share(n, most)*(bottom-top)
		if last-y >= space || n == highest && len(out) == 0 {
			out = append(out, level{y, compact(n)})
			last = y
		}
	}
	return out
}

// x returns the place of an instant on the time axis, in percent.
func (c *chart) x(at time.Time) float64 {
	return min(100, max(0, float64(at.Sub(c.From))*100/float64(c.To.Sub(c.From))))
}

// TableLink returns the address of the decisions in a grain; "" if there is none.
func (c *chart) TableLink(b *bar) string {
	if c.Decisions == "" || c.Now.Sub(b.Start) > decisionsBack {
		return ""
	}
	return c.Decisions + "&from=" + b.Start.UTC().Format(minuteForm) + "&to=" + b.Start.Add(c.Grain.Duration()).UTC().Format(minuteForm)
}

// minuteForm is a time in an address, in UTC.
const minuteForm = "2006-01-02T15:04"

// decisionsBack is how far back charts lead to decisions: they are kept in memory, and older ones
// are rarely there.
const decisionsBack = 48 * time.Hour

// Running reports whether a grain is not over.
func (c *chart) Running(b *bar) bool {
	return !c.Now.Before(b.Start) && c.Now.Before(b.Start.Add(c.Grain.Duration()))
}

// tick is a label of the time axis.
type tick struct {
	X, Text string
	At      time.Time
	Local   string // how js/times.js shows it in local time: "hour", "date", or "" for a UTC day
	Odd     bool   // a narrow screen omits it
	Anchor  string // the side of the label that is at X
}

// Ticks returns labels at round times, at most eight of them.
func (c *chart) Ticks() (out []tick) {
	steps := []time.Duration{
		5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour, 4 * time.Hour,
		6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 2 * 24 * time.Hour, 5 * 24 * time.Hour, 10 * 24 * time.Hour, 30 * 24 * time.Hour, 60 * 24 * time.Hour,
	}
	length := c.To.Sub(c.From)
	step := steps[len(steps)-1]
	for _, s := range steps {
		if s >= c.Grain.Duration() && length/s <= 8 {
			step = s
			break
		}
	}
	for at := c.From.Truncate(step); at.Before(c.To); at = at.Add(step) {
		if at.Before(c.From) {
			continue
		}
		format, local := "15:04", "hour"
		switch {
		case c.Grain == usage.Day:
			local = ""
		case step >= 24*time.Hour:
			local = "date"
		}
		if step >= 24*time.Hour || at.Hour() == 0 && at.Minute() == 0 && step > time.Hour {
			format = "2 Jan"
		}
		x, anchor := (float64(at.Sub(c.From))+float64(c.Grain.Duration())/2)*100/float64(length), "middle"
		if x > 97 { // half of it would be beside the chart
			x, anchor = 100, "end"
		}
		out = append(out, tick{X: percentage(x), Anchor: anchor, Text: at.Format(format), At: at, Local: local, Odd: len(out)%2 == 1})
	}
	return out
}

// Points returns the line of the allowed checks of the previous period, in the units of a small
// chart.
func (c *chart) Points() string {
	most := c.MostAllowed()
	var b strings.Builder
	for i := range c.Bars {
		y := chartHeight - int64(c.share(c.Bars[i].BeforeAllowed, most)*chartHeight)
		b.WriteString(itoa(c.Bars[i].X+barWidth/2) + "," + itoa(y) + " ")
	}
	return b.String()
}

// Summary describes the chart in words.
func (c *chart) Summary() string {
	var parts []string
	for i := range c.Parts {
		parts = append(parts, c.Parts[i].Name+" "+grouped(c.Parts[i].Sum()))
	}
	text := c.Title + ": " + grouped(c.Allowed) + " checks allowed, " + grouped(c.Denied) + " denied, per " + c.Grain.String()
	if len(parts) > 0 {
		text += "; allowed by group: " + strings.Join(parts, ", ")
	}
	if c.Before {
		text += "; previous period: " + grouped(c.BeforeAllowed) + " allowed, " + grouped(c.BeforeDenied) + " denied"
	}
	return text
}

// atLeast qualifies the totals of the previous period.
func (c *chart) atLeast() string {
	if c.BeforeUnknown {
		return "at least "
	}
	return ""
}

// Empty reports whether there are no checks.
func (c *chart) Empty() bool { return c.Allowed+c.Denied+c.BeforeAllowed+c.BeforeDenied == 0 }

// Data returns the JSON that scripts read for tooltips: seconds since 1970, allowed, denied, and
// the total of the previous period.
func (c *chart) Data() string {
	columns := make([][]byte, 4)
	for i := range c.Bars {
		b := &c.Bars[i]
		for at, n := range []int64{b.Start.Unix(), b.Allowed, b.Denied, b.BeforeAllowed + b.BeforeDenied} {
			if i > 0 {
				columns[at] = append(columns[at], ',')
			}
			columns[at] = strconv.AppendInt(columns[at], n, 10)
		}
	}
	if !c.Before {
		columns = columns[:3]
	}
	texts := make([]string, len(columns))
	for i, column := range columns {
		texts[i] = "[" + string(column) + "]"
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// change compares a number with an earlier one, as in "+12 %".
func change(now, before int64) string {
	switch {
	case now == before:
		return "unchanged"
	case before == 0:
		return "up from none"
	case now == 0:
		return "down to none"
	case now >= 10*before:
		return strconv.FormatInt(now/before, 10) + "x"
	case now > before:
		return "+" + percent(now-before, before)
	}
	return "\u2212" + percent(before-now, before)
}

// MissingData returns for scripts how many more checks there may have been, by grain; "" if all is
// known.
func (c *chart) MissingData() string {
	missing, some := make([]int64, len(c.Bars)), false
	for i := range c.Bars {
		missing[i] = c.Bars[i].Missing
		some = some || missing[i] > 0
	}
	if !some {
		return ""
	}
	return "[" + joined(missing) + "]"
}

func chartColumns(c *chart) string {
	columns := 3 + len(c.Parts)
	if c.Before {
		columns += 2
	}
	return strconv.Itoa(columns)
}
