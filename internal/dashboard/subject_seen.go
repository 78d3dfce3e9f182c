package dashboard

import (
	"context"
	"time"

	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// subjectSeen is when the first and the last check of a subject were seen.
type subjectSeen struct {
	First time.Time // a day; zero: not known
	// Before means that there may have been checks before First: on an earlier day the subject may
	// have been outside of the list of the busiest ones.
	Before bool
	Last   time.Time // zero: not known
	Exact  bool      // Last is the time of a check, and not the start of a day
}

// FirstText returns the day of the first check in words.
func (s *subjectSeen) FirstText() string {
	switch {
	case s.First.IsZero():
		return "not known"
	case s.Before:
		return "on or before " + s.First.UTC().Format(utcDay)
	}
	return s.First.UTC().Format(utcDay)
}

// utcDay is a day of usage, which is one in UTC, beside times that the browser shows in its zone.
const utcDay = "2 Jan 2006 UTC"

// LastText returns the time of the last check in words, for prose.
func (s *subjectSeen) LastText() string {
	switch {
	case s.Last.IsZero():
		return "not known"
	case s.Exact:
		return spoken(s.Last, "minute")
	}
	return s.Last.UTC().Format(utcDay)
}

// readSeen reads when checks of a subject were seen, from the days in which it was among the
// busiest subjects or denied, and from the decisions that instances remember.
func (d *dashboard) readSeen(ctx context.Context, a tenants.Actor, subject string, now time.Time) (*subjectSeen, error) {
	days := stretchUntil(now, usage.Day, int(tenants.UsageRetention(usage.Day)/usage.Day.Duration()))
	report, err := d.Store.UsageOfSubject(ctx, a, subject, tenants.UsageQuery{Grain: usage.Day, From: days.From, To: days.To})
	if err != nil {
		return nil, err
	}
	out := &subjectSeen{}
	for i := range report.Steps {
		step := &report.Steps[i]
		switch {
		case step.Listed && out.First.IsZero():
			out.First = step.Start
			fallthrough
		case step.Listed:
			out.Last = step.Start
		case out.First.IsZero() && step.Error > 0:
			out.Before = true
		}
	}
	list := d.recent(ctx, a.TenantID(), recent.Query{Subject: subject, Most: 1})
	if len(list.Decisions) > 0 {
		out.Last, out.Exact = list.Decisions[0].At, true
		if out.First.IsZero() {
			out.First = out.Last
		}
	}
	return out, nil
}
