package dashboard

import (
	"net/url"
	"strings"
	"time"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// headline is the most important fact about a period, in one sentence.
type headline struct {
	Subject string // the subject of the sentence; "" for none
	Text    string // the sentence, after the subject's name if there is one
	Denied  string // its part about denials, between Text and Since
	Since   string
	Note    string
	Boost   bool // its denials are still coming
}

// Denials returns the address of the subject's denied checks, or of all without a subject.
func (h *headline) Denials() string {
	query := url.Values{"show": {"denied"}}
	if h.Subject != "" {
		query.Set("subject", h.Subject)
	}
	return "/decisions?" + query.Encode()
}

// deniedSubject is a subject with its denials.
type deniedSubject struct {
	Subject string
	Denied  int64
	Trend   trend // usage knows only the denials of these subjects

	// When its present denials began, and how many there were since then; zero if they have ended.
	Since  time.Time
	Recent int64
}

// mostDeniedSubjects is the number of subjects on the overview.
const mostDeniedSubjects = 5

// deniedSubjects sums up the most denied subjects of a period, most denials first, with their
// trends.
func deniedSubjects(items []tenants.UsageItem, s stretch) (out []deniedSubject) {
	for _, group := range usageGroups("subject", within(items, s), true) {
		if group.Denied > 0 && len(out) < mostDeniedSubjects {
			of := itemsOf("subject", group.Name, items)
			for i := range of {
				of[i].Allowed = 0
			}
			top := deniedSubject{Subject: group.Name, Denied: group.Denied, Trend: newTrend(of, s)}
			top.Since, top.Recent = deniedRun(of, s)
			out = append(out, top)
		}
	}
	return out
}

// deniedRun returns the start of the first of the last consecutive grains with denials, and their
// denials. The last grain has just begun, so it may have none yet.
func deniedRun(items []tenants.UsageItem, s stretch) (since time.Time, denied int64) {
	at := map[time.Time]int64{}
	for i := range items {
		at[items[i].Start.UTC()] += items[i].Denied
	}
	length := s.Grain.Duration()
	last := s.To.Add(-length)
	denied = at[last]
	if denied > 0 {
		since = last
	}
	for start := last.Add(-length); !start.Before(s.From) && at[start] > 0; start = start.Add(-length) {
		since, denied = start, denied+at[start]
	}
	return since, denied
}

// outstanding is the share of all denials, in percent, from which a single subject is mentioned.
const outstanding = 50

// headlineOf chooses the most important sentence. denying and subjects are sorted by their denials.
func headlineOf(c *chart, within string, denying []denyingRule, subjects []deniedSubject) headline {
	since := "in the last " + strings.TrimPrefix(within, "1 ")
	switch {
	case c.Allowed+c.Denied == 0:
		return headline{}
	case c.Denied == 0:
		return headline{Text: "No denials " + since, Note: plural(c.Allowed, "check was", "checks were") + " allowed."}
	}
	out := headline{Text: "", Denied: plural(c.Denied, "check", "checks") + " denied", Since: since}
	share := percent(c.Denied, c.Allowed+c.Denied) + " of " + plural(c.Allowed+c.Denied, "check", "checks")
	out.Note = share + "."
	if len(denying) > 0 {
		out.Note += " " + denying[0].Name + " denied " + grouped(denying[0].Denied) + "."
	}
	if len(subjects) == 0 {
		return out
	}
	if top := subjects[0]; top.Denied*100 >= c.Denied*outstanding {
		out.Subject, out.Text = top.Subject, "causes"
		out.Denied = percent(min(top.Denied, c.Denied), c.Denied) + " of denials"
		if from := top.Since; !from.IsZero() && from.After(c.From) {
			if all := c.deniedFrom(from); all > 0 {
				out.Denied = percent(min(top.Recent, all), all) + " of denials"
			}
			out.Since, out.Boost = "since "+c.sinceText(from), true
			out.Note = "I" + since[1:] + ", " + share + " were denied" + strings.TrimPrefix(out.Note, share)
			if m := c.markBefore(from); m != nil {
				out.Note += " Before that, at " + m.spoken() + "."
			}
		}
	} else {
		out.Note += " No single subject stands out."
	}
	return out
}

// deniedFrom returns the denials since a time.
func (c *chart) deniedFrom(from time.Time) (sum int64) {
	for i := range c.Bars {
		if !c.Bars[i].Start.Before(from) {
			sum += c.Bars[i].Denied
		}
	}
	return sum
}

// sinceText names a time of the chart in a sentence: the time of day, with the date if that is
// another day.
func (c *chart) sinceText(at time.Time) string {
	at = at.UTC()
	if c.Grain == usage.Day {
		return at.Format("2 Jan")
	}
	if now := c.Now.UTC(); at.YearDay() != now.YearDay() || at.Year() != now.Year() {
		return spoken(at, "short")
	}
	return spoken(at, "clock")
}

// causeWithin is the longest time between a change and denials that it may have caused, in grains.
const causeWithin = 5

// markBefore returns the last change of the configuration shortly before a time, or in its grain.
func (c *chart) markBefore(at time.Time) *chartMark {
	length := c.Grain.Duration()
	for i := len(c.Marks) - 1; i >= 0; i-- {
		m := &c.Marks[i]
		if m.At.Before(at.Add(length)) && m.At.After(at.Add(-causeWithin*length)) {
			return m
		}
	}
	return nil
}
