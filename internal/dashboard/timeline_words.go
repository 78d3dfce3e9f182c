package dashboard

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"weir/internal/limit"
)

// algorithmTitles are the names of the algorithms for people.
var algorithmTitles = map[limit.Algorithm]string{
	limit.SlidingWindowCounter: "Sliding window counter",
	limit.SlidingWindowLog:     "Sliding window log",
	limit.SlidingWindowBuckets: "Sliding window buckets",
	limit.FixedWindow:          "Fixed window",
	limit.FixedWindowFirstHit:  "Fixed window from the first hit",
	limit.TokenBucket:          "Token bucket",
	limit.LeakyBucket:          "Leaky bucket",
	limit.LeakyBucketQueue:     "Leaky bucket queue",
}

// Said describes the result of the rule in sentences.
func (t *timeline) Said() (out []string) {
	if t.Asked == 0 {
		return []string{"No requests."}
	}
	queue := t.Rule.Algorithm == limit.LeakyBucketQueue
	out = append(out, t.outcome())
	if crowd := t.crowdSentence(queue); crowd != "" {
		out = append(out, crowd)
	}
	if queue {
		if delay := t.longest(func(h timelineHit) int64 { return h.DelayMS }); delay > 0 {
			out = append(out, "Allowed requests waited up to "+span(delay)+".")
		}
	}
	if t.Denied == 0 {
		return out
	}
	if len(t.Shut) > 0 {
		return append(out, "The penalty then denied everything for "+exactly(t.Rule.Penalty.MS, true)+".")
	}
	wait := t.longest(func(h timelineHit) int64 {
		if h.Allowed {
			return 0
		}
		return h.RetryAfterMS
	})
	if wait > 0 {
		out = append(out, "Longest retry after: "+span(wait)+".")
	}
	return out
}

func (t *timeline) outcome() string {
	verb := " allowed"
	switch {
	case t.Denied == 0 && t.Asked == 1:
		return "1 of 1 request" + verb + "."
	case t.Denied == 0:
		return grouped(t.Asked) + " of " + grouped(t.Asked) + " requests" + verb + "."
	case t.Passed == 0:
		return "0 of " + plural(t.Asked, "request", "requests") + verb + "."
	}
	return grouped(t.Passed) + " of " + plural(t.Asked, "request", "requests") + verb + "."
}

func (t *timeline) crowdSentence(queue bool) string {
	window := exactly(t.Rule.Window.MS, false)
	verb := " allowed within "
	if queue {
		verb = " released within "
	}
	switch c := t.Crowd; {
	case c.Count == 0:
		return ""
	case c.Count > t.Rule.Limit:
		return grouped(c.Count) + verb + atLeastSpan(c.ToMS-c.FromMS) + ": " + overLimit(c.Count, t.Rule.Limit) +
			" of " + grouped(t.Rule.Limit) + " per " + window + "."
	case c.Count == t.Rule.Limit:
		return "Never more than the limit, " + grouped(c.Count) + ", in any " + window + "."
	default:
		return "Never more than " + grouped(c.Count) + " in any " + window + "."
	}
}

// overLimit compares a number with the limit that it exceeds.
func overLimit(n, lim int64) string {
	switch {
	case n == 2*lim:
		return "twice the limit"
	case 10*n < 11*lim:
		return grouped(n-lim) + " more than the limit"
	}
	return strconv.FormatFloat(math.Floor(10*float64(n)/float64(lim))/10, 'f', -1, 64) + " times the limit"
}

func (t *timeline) longest(of func(timelineHit) int64) (most int64) {
	for _, h := range t.Hits {
		most = max(most, of(h))
	}
	return most
}

// Summary describes the chart in one sentence, for people who cannot see it.
func (t *timeline) Summary() string {
	return t.Title + ": " + plural(t.Asked, "request", "requests") + " in " + span(t.SpanMS) + ", " +
		grouped(t.Passed) + " allowed, " + grouped(t.Denied) + " " + t.DeniedName() + "."
}

// span formats a duration with a useful number of digits: "1.9 seconds", "12 seconds".
func span(ms int64) string {
	switch {
	case ms < 1000:
		return plural(ms, "millisecond", "milliseconds")
	case ms < 10_000 && ms%1000 != 0:
		return strconv.FormatFloat(float64((ms+99)/100)/10, 'f', -1, 64) + " seconds" // rounded up
	}
	return inWords(time.Duration(ms) * time.Millisecond)
}

// atLeastSpan is span, except that 0 is "the same millisecond".
func atLeastSpan(ms int64) string {
	if ms == 0 {
		return "one millisecond"
	}
	return span(ms)
}

// clockText formats an instant of a chart in a unit that suits its length: "12.5 s", "3 min".
func clockText(ms, of int64) string {
	unit, name := int64(1000), "s"
	for _, u := range []struct {
		ms   int64
		name string
	}{{60_000, "min"}, {3_600_000, "h"}, {86_400_000, "d"}} {
		if of >= 3*u.ms {
			unit, name = u.ms, u.name
		}
	}
	return strconv.FormatFloat(math.Round(100*float64(ms)/float64(unit))/100, 'f', -1, 64) + " " + name
}

// compared describes the differences between timelines of the same traffic.
func compared(all []*timeline) (out []string) {
	if len(all) == 0 || all[0].Asked == 0 {
		return nil
	}
	lim, window := all[0].Rule.Limit, exactly(all[0].Rule.Window.MS, false)
	worst := slices.MaxFunc(all, func(a, b *timeline) int { return a.Crowd.compare(b.Crowd) })
	most := worst.Crowd.Count
	switch {
	case most <= lim:
		out = append(out, "No algorithm allowed more than "+grouped(lim)+" in any "+window+".")
	default:
		out = append(out, worst.Title+" allowed "+grouped(most)+" within "+
			atLeastSpan(worst.Crowd.ToMS-worst.Crowd.FromMS)+", "+overLimit(most, lim)+".")
		others := titles(all, func(t *timeline) bool { return t != worst && t.Crowd.Count > lim })
		within := titles(all, func(t *timeline) bool { return t.Crowd.Count <= lim })
		if len(others) > 0 {
			out = append(out, "Also over the limit in some "+window+": "+listed(others)+".")
		}
		if len(within) > 0 {
			out = append(out, "Never more than "+grouped(lim)+" in any "+window+": "+listed(within)+".")
		}
	}
	most = slices.MaxFunc(all, byPassed).Passed
	least := slices.MinFunc(all, byPassed).Passed
	if most == least {
		return append(out, "Each algorithm allowed "+grouped(most)+" of "+grouped(all[0].Asked)+" in total, at different times.")
	}
	return append(out, "Most allowed in total: "+listed(titles(all, func(t *timeline) bool { return t.Passed == most }))+
		" ("+grouped(most)+" of "+grouped(all[0].Asked)+"), fewest with "+
		listed(titles(all, func(t *timeline) bool { return t.Passed == least }))+" ("+grouped(least)+").")
}

func byPassed(a, b *timeline) int { return cmp.Compare(a.Passed, b.Passed) }

// titles returns the titles of the selected timelines, for use within a sentence.
func titles(all []*timeline, chosen func(*timeline) bool) (out []string) {
	for _, t := range all {
		if chosen(t) {
			out = append(out, lowerFirst(t.Title))
		}
	}
	return out
}

// listed joins names for a sentence.
func listed(names []string) string {
	switch last := len(names) - 1; last {
	case -1:
		return ""
	case 0:
		return names[0]
	default:
		text := names[0]
		for _, n := range names[1:last] {
			text += ", " + n
		}
		return text + " and " + names[last]
	}
}

// lowerFirst returns a title for use within a sentence.
func lowerFirst(s string) string {
	first, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToLower(first)) + s[size:]
}

// DeniedName names what the rule denies: in shadow, it only would.
func (t *timeline) DeniedName() string {
	if t.Rule.Mode == limit.Shadow {
		return "would be denied"
	}
	return "denied"
}

// sentenceCase returns a text that begins with a capital letter.
func sentenceCase(text string) string { return strings.ToUpper(text[:1]) + text[1:] }
