package dashboard

import (
	"time"

	"weir/internal/limit"
)

// nextWindows are the next windows of a rule for one subject.
type nextWindows struct {
	Whose   string // "" for all subjects
	Windows []windowLine
	Zone    string
}

type windowLine struct{ Starts, Ends string }

// mostNextWindows is how many windows the preview of a rule shows.
const mostNextWindows = 5

// anchorField is the input for the cycle anchor of the preview of windows. It is not part of the
// rule.
const anchorField = "preview_anchor"

// windowsOf returns the current window of a draft and the next four, or nil for a draft whose
// window is a duration.
func windowsOf(f *form, draft *limit.Rule, now time.Time) *nextWindows {
	cycle, err := draft.Cycle()
	if err != nil || cycle == nil {
		return nil
	}
	out, anchorMS := &nextWindows{Zone: draft.ZoneName()}, limit.NoAnchor
	if draft.Anchor == limit.AnchorSubject {
		out.Whose = "a subject without a cycle anchor"
		if at := f.instant(anchorField); at != nil {
			anchorMS = at.UnixMilli()
			out.Whose = "a subject with the cycle anchor " + moment{*at}.Human()
		}
	}
	windows := cycle.Windows(anchorMS)
	clock := func(ms int64) string { return time.UnixMilli(ms).In(windows.Zone()).Format("Mon 2 Jan 2006 15:04 MST") }
	span := windows.At(now.UnixMilli())
	for range mostNextWindows {
		out.Windows = append(out.Windows, windowLine{clock(span.StartMS), clock(span.EndMS)})
		span = windows.Next(span)
	}
	return out
}

// Place says for which zone and for whom the windows are.
func (w *nextWindows) Place() string {
	if w.Whose == "" {
		return "In " + w.Zone
	}
	return "In " + w.Zone + ", for " + w.Whose
}
