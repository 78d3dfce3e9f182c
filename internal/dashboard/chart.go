package dashboard

import (
	"context"
	"strconv"
	"strings"
	"time"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// stretch is a stretch of time in whole grains, and the one before it of the same length.
type stretch struct {
	Grain    usage.Grain
	From, To time.Time
	Before   bool // whether usage of the time before is kept, too
}

// stretchUntil returns the stretch of so many grains that ends with the one that now lies in.
func stretchUntil(now time.Time, grain usage.Grain, grains int) stretch {
	length := grain.Duration()
	to := now.UTC().Truncate(length).Add(length)
	return newStretch(now, grain, to.Add(-time.Duration(grains)*length), to)
}

// newStretch rounds outward to whole grains.
func newStretch(now time.Time, grain usage.Grain, from, to time.Time) stretch {
	length := grain.Duration()
	s := stretch{Grain: grain, From: from.UTC().Truncate(length), To: to.UTC().Truncate(length)}
	if s.To.Before(to) {
		s.To = s.To.Add(length)
	}
	s.Before = !s.earlier().Before(now.Add(-tenants.UsageRetention(grain)).Truncate(length))
	return s
}

// earlier is when the time before begins.
func (s stretch) earlier() time.Time { return s.From.Add(-s.To.Sub(s.From)) }

// count is the number of grains.
func (s stretch) count() int { return int(s.To.Sub(s.From) / s.Grain.Duration()) }

// chart is checks over time, one bar for each grain, with the time before behind it.
type chart struct {
	stretch
	Title           string
	Bars            []bar
	Allowed, Denied int64 // in all
	BeforeAllowed   int64 // in the time before
	BeforeDenied    int64
	Zoom            string // where a part of the time is shown by itself, "": nowhere
}

// bar is one grain. The drawing is barWidth units wide for each bar and chartHeight high, and is
// stretched to the place that there is.
type bar struct {
	Start                       time.Time
	Allowed, Denied             int64
	BeforeAllowed, BeforeDenied int64
	X                           int64
	AllowedY, AllowedHeight,
	DeniedY, DeniedHeight,
	BeforeY int64
}

const (
	barWidth    = 10
	chartHeight = 1000
)

// series reads a chart's numbers. The query says of what; the time is the stretch's.
func (d *dashboard) series(ctx context.Context, a tenants.Actor, title string, s stretch, query tenants.UsageQuery) (chart, error) {
	query.Grain, query.From, query.To = s.Grain, s.From, s.To
	if s.Before {
		query.From = s.earlier()
	}
	report, err := d.Store.Usage(ctx, a, query)
	return newChart(title, s, report.Items), err
}

// newChart fills in the grains in which nothing was asked.
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
		most = max(most, b.Allowed+b.Denied, b.BeforeAllowed+b.BeforeDenied)
	}
	for i := range c.Bars {
		b := &c.Bars[i]
		b.AllowedHeight, b.DeniedHeight = barHeight(b.Allowed, most), barHeight(b.Denied, most)
		b.AllowedY = chartHeight - b.AllowedHeight
		b.DeniedY = max(0, b.AllowedY-b.DeniedHeight)
		b.BeforeY = chartHeight - barHeight(b.BeforeAllowed+b.BeforeDenied, most)
	}
}

// barHeight is never nothing for what is not nothing.
func barHeight(n, most int64) int64 {
	if n == 0 {
		return 0
	}
	const room = chartHeight - 40 // so that two bars of the least height fit
	return max(15, int64(float64(n)/float64(most)*room))
}

// Clock names a grain by its beginning.
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

// Label says a grain in words.
func (c *chart) Label(b *bar) string {
	text := c.Clock(b.Start) + " UTC: " + grouped(b.Allowed) + " allowed, " + grouped(b.Denied) + " denied"
	if c.Before {
		text += "; previous period: " + grouped(b.BeforeAllowed) + " allowed, " + grouped(b.BeforeDenied) + " denied"
	}
	return text
}

// Width is that of the drawing.
func (c *chart) Width() int64 { return int64(len(c.Bars)) * barWidth }

// Points are those of the line of the time before.
func (c *chart) Points() string {
	var b strings.Builder
	for i := range c.Bars {
		b.WriteString(itoa(c.Bars[i].X+barWidth/2) + "," + itoa(c.Bars[i].BeforeY) + " ")
	}
	return b.String()
}

// Summary says the whole in words.
func (c *chart) Summary() string {
	text := c.Title + ": " + grouped(c.Allowed) + " checks allowed, " + grouped(c.Denied) + " denied, per " + c.Grain.String()
	if c.Before {
		text += "; previous period: " + grouped(c.BeforeAllowed) + " allowed, " + grouped(c.BeforeDenied) + " denied"
	}
	return text
}

// Empty reports whether there is nothing to draw.
func (c *chart) Empty() bool { return c.Allowed+c.Denied+c.BeforeAllowed+c.BeforeDenied == 0 }

// Data is what scripts draw: seconds since 1970, allowed, denied, and of the time before both
// together; as JSON, of numbers alone.
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

// change says how a number compares with an earlier one, as "+12 %".
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

func chartColumns(c *chart) string {
	if c.Before {
		return "5"
	}
	return "3"
}
