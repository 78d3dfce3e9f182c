package dashboard

import (
	"encoding/json"
	"time"
)

// chartMark is a change of the configuration, where it was made on the time axis.
type chartMark struct {
	At                time.Time
	Text, Short, Link string
	Others            int // further changes in the same grain
}

// Whole is the text, with the number of the others.
func (m *chartMark) Whole() string {
	if m.Others == 0 {
		return m.Text
	}
	return m.Text + " and " + plural(int64(m.Others), "more change", "more changes")
}

// Label is the mark with its time, for attributes. It begins with the label in the chart, which is
// a part of the name of the link.
func (m *chartMark) Label() string {
	text := inUTC(spoken(m.At, "clock") + ": " + m.Whole())
	if m.Short != "" {
		text = m.Short + ", " + text
	}
	return text
}

// spoken is Label for a sentence.
func (m *chartMark) spoken() string { return spoken(m.At, "clock") + ": " + m.Text }

// MarkX returns the place of a mark.
func (c *chart) MarkX(m *chartMark) string { return percentage(c.x(m.At)) }

// roomForLabel is the part of the width, in percent, that the label of a mark needs.
const roomForLabel = 18

// MarkLabels returns for each mark whether its label is drawn after it ("start"), before it
// ("end"), or not at all, because it would cover another one ("").
func (c *chart) MarkLabels() []string {
	out, used := make([]string, len(c.Marks)), 0.0 // up to where labels are drawn
	for i := range c.Marks {
		x, next := c.x(c.Marks[i].At), 100.0
		if i+1 < len(c.Marks) {
			next = c.x(c.Marks[i+1].At)
		}
		switch {
		case next-x >= roomForLabel && x >= used:
			out[i], used = "start", x+roomForLabel
		case x-used >= roomForLabel:
			out[i] = "end"
		}
		used = max(used, x+1)
	}
	return out
}

// MarkData returns the marks for scripts: the grain of each, its time, and its text.
func (c *chart) MarkData() string {
	type item struct {
		Step int    `json:"step"`
		At   int64  `json:"at"`
		Text string `json:"text"`
	}
	items := make([]item, 0, len(c.Marks))
	for _, m := range c.Marks {
		items = append(items, item{int(m.At.Sub(c.From) / c.Grain.Duration()), m.At.Unix(), inUTC(m.Whole())})
	}
	data, _ := json.Marshal(items) // cannot fail for numbers and texts
	return string(data)
}
