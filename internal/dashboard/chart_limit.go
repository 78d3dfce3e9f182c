package dashboard

import (
	"slices"
	"time"
)

// limitLine is a limit, in checks per grain.
type limitLine struct {
	Text  string // "API requests: 100 per minute"
	Parts []limitPart
}

// limitPart is the limit that was in force from From to To.
type limitPart struct {
	From, To time.Time
	Limit    int64
}

// limitAbove reports whether the limit is so far above the bars, of which the largest is most, that
// a scale with both would hide the bars.
func (c *chart) limitAbove(most int64) bool {
	if c.Limit == nil || most == 0 || c.Log {
		return false
	}
	return !slices.ContainsFunc(c.Limit.Parts, func(p limitPart) bool { return p.Limit <= farAbove*most })
}

// farAbove is the number of times that a limit can be above the bars of its chart.
const farAbove = 10

// LimitText names the limit, and says if the chart has no space for its line.
func (c *chart) LimitText() string {
	if len(c.LimitSegments()) == 0 && len(c.Limit.Parts) > 0 {
		return c.Limit.Text + ", beyond this scale"
	}
	return c.Limit.Text
}

// limitSegment is a part of the line of the limit, in the drawing.
type limitSegment struct{ From, To, Y string }

// LimitSegments returns the line of the limit.
func (c *chart) LimitSegments() (out []limitSegment) {
	if c.Limit == nil {
		return nil
	}
	most := c.MostAllowed()
	for _, p := range c.Limit.Parts {
		from, to := c.x(p.From), c.x(p.To)
		if from < to && p.Limit <= most {
			out = append(out, limitSegment{percentage(from), percentage(to), percentage(plotBottom - c.share(p.Limit, most)*(plotBottom-plotTop))})
		}
	}
	return out
}
