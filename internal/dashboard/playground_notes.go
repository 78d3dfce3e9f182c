package dashboard

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// algorithmNote explains an algorithm for choosing one. docs/algorithms.md has more details.
type algorithmNote struct{ How, Choose, Bound, Used, Example string }

var algorithmNotes = map[limit.Algorithm]algorithmNote{
	limit.SlidingWindowCounter: {
		How: "It keeps two counters: units used in the current clock window and in the previous one. " +
			"The previous counter is weighted by its overlap with a window that ends now. " +
			"Capacity returns evenly instead of all at once, at the cost of two numbers per subject.",
		Choose:  "you are unsure. It is the default: cheap, and without the double burst of a fixed window.",
		Bound:   "just under twice the limit, of which only one limit can come in a burst.",
		Used:    "current window + previous window × its overlap, rounded down",
		Example: "Limit 100 per minute. 40 units in the previous minute, 80 in the current one, which is half over. The 40 count as 20, so 100 are used. The next check is allowed one millisecond later.",
	},
	limit.SlidingWindowLog: {
		How: "It stores the time of each allowed request of the last window. A request that is one window old no longer counts. " +
			"It is exact: no window of any start time exceeds the limit. It uses memory for each request.",
		Choose:  "the limit is small and must hold in every possible window.",
		Bound:   "the limit, for every possible window.",
		Used:    "the sum of costs allowed after now − window",
		Example: "Limit 3 per minute. Requests are allowed at seconds 0, 10 and 50. A request at second 55 is denied with a retry after 5 seconds, when the first is one minute old.",
	},
	limit.SlidingWindowBuckets: {
		How: "It splits the window into buckets with one counter each. The current bucket and the buckets before it that make up a window count in full. " +
			"A bucket that leaves the window releases all its units at once. This is nearly as exact as the log, with small and fixed memory. In the playground a window has five buckets.",
		Choose:  "the limit is large and you want nearly the precision of the log.",
		Bound:   "the limit in almost one window; twice the limit in a full window.",
		Used:    "the sum of the last window ÷ precision buckets",
		Example: "Limit 1,000 per hour with a precision of one minute: sixty counters. Units used at 10:00:30 are available again at 11:00:00.",
	},
	limit.FixedWindow: {
		How: "One counter for each clock window. It starts at zero when the next window starts. A window can be a calendar day, week, month or year. " +
			"It is easy to explain to a customer: the reset is a time on the clock. But the end of one window and the start of the next are adjacent, and each allows the full limit.",
		Choose:  "you sell a quota per hour, or per calendar day, week, month or year.",
		Bound:   "twice the limit, even within two milliseconds.",
		Used:    "units allowed since the window started",
		Example: "Limit 10,000 per month: it resets on the 1st at 00:00 UTC, like an invoice.",
	},
	limit.FixedWindowFirstHit: {
		How: "A fixed window that starts with the first request of each subject. " +
			"Subjects do not reset at the same time, which avoids load peaks. A subject can still get nearly twice the limit: once at the end of a window, once at the start of the next.",
		Choose:  "each customer's window should start with its first request.",
		Bound:   "one less than twice the limit.",
		Used:    "units allowed since the first request of the window",
		Example: "Limit 5 per 24 hours for a trial. A customer who starts at 15:12 has five until 15:12 the next day.",
	},
	limit.TokenBucket: {
		How: "A bucket holds tokens, up to the burst. It refills evenly with the limit per window. A request takes its cost in tokens or is denied. " +
			"A quiet subject saves tokens and can send a burst. A busy subject gets the plain rate.",
		Choose:  "bursts are acceptable and the long-term rate must hold.",
		Bound:   "the burst plus the limit that refills in the window.",
		Used:    "burst − tokens",
		Example: "Limit 100 per second with burst 500: 500 at once after five quiet seconds, 100 per second for steady traffic.",
	},
	limit.LeakyBucket: {
		How: "The mirror image of the token bucket. Requests fill the bucket, the limit drains per window, and a request that would overflow the burst is denied. " +
			"Both make the same decisions. Choose the one that your customers understand better.",
		Choose:  "you want a token bucket described as a meter that drains.",
		Bound:   "the burst plus the limit that drains in the window.",
		Used:    "the level of the bucket",
		Example: "Limit 60 per minute with burst 10: a meter of at most 10 that falls by 1 per second.",
	},
	limit.LeakyBucketQueue: {
		How: "It allows the same requests as the leaky bucket, but tells each to wait until all earlier ones have drained. " +
			"Your backend receives requests evenly, one after another. The burst is the length of the queue.",
		Choose:  "your backend needs an even flow and callers can wait.",
		Bound:   "the limit, released evenly.",
		Used:    "the level of the bucket, and the wait for the turn",
		Example: "Limit 1 per second with burst 10: ten simultaneous jobs proceed after 0, 1, 2 … 9 seconds. The eleventh is denied.",
	},
}

// algorithmSlug returns an algorithm's name in a path.
func algorithmSlug(a limit.Algorithm) string { return strings.ReplaceAll(a.String(), "_", "-") }

// algorithmView is the page of one algorithm.
type algorithmView struct {
	Algorithm limit.Algorithm
	Title     string
	Note      algorithmNote
	Pictures  []algorithmPicture
}

type algorithmPicture struct {
	Title, Story, URL string
	Timeline          *timeline
}

// algorithmPage shows how one algorithm handles each kind of traffic, with the playground's default
// settings.
func (d *dashboard) algorithmPage(w http.ResponseWriter, r *http.Request) error {
	i := slices.IndexFunc(playOrder, func(a limit.Algorithm) bool { return algorithmSlug(a) == chi.URLParam(r, "algorithm") })
	if i < 0 {
		return tenants.ErrNotFound
	}
	if wait := d.playground.admit(networksOf(r)); wait > 0 {
		return &tooFastError{wait, playgroundLimited}
	}
	leave, err := d.playground.enter(r.Context(), networksOf(r))
	if err != nil {
		return err
	}
	defer leave()
	a := playOrder[i]
	view := algorithmView{Algorithm: a, Title: algorithmTitles[a], Note: algorithmNotes[a]}
	for _, s := range scenarios {
		settings, _ := readPlay(url.Values{"traffic": {s.Name}})
		var results []*timeline
		busy := d.turns.do(r.Context(), playgroundTurns, func() { results, err = settings.play(r.Context(), []limit.Algorithm{a}) })
		if err := cmp.Or(busy, err); err != nil {
			return err
		}
		if results[0].Asked > 0 {
			results[0].Title = s.Title
			view.Pictures = append(view.Pictures, algorithmPicture{s.Title, s.Story, "/playground?" + settings.query(), results[0]})
		}
	}
	w.Header().Set("Cache-Control", playFresh)
	return d.renderFor(playgroundTurns, w, r, http.StatusOK, algorithmPage(d.openFrame(w, r, view.Title), &view))
}

var playLengths = []option{
	{"1s", "1 second"}, {"5s", "5 seconds"}, {"10s", "10 seconds"}, {"30s", "30 seconds"}, {"1m", "1 minute"}, {"1h", "1 hour"}, {"24h", "24 hours"},
}

// lengthOptions returns the usual durations, and the one in the address.
func lengthOptions(chosen string) []option {
	if chosen == "" || slices.ContainsFunc(playLengths, func(o option) bool { return o.Value == chosen }) {
		return playLengths
	}
	return append([]option{{chosen, chosen}}, playLengths...)
}

func penaltyOptions(chosen string) []option {
	return append([]option{{"", "none"}}, lengthOptions(chosen)...)
}

func burstText(burst int64) string {
	if burst == 0 {
		return ""
	}
	return itoa(burst)
}

func waitText(t *timeline) string {
	wait := t.longest(func(h timelineHit) int64 { return max(h.RetryAfterMS, h.DelayMS) })
	if wait == 0 {
		return "none"
	}
	return span(wait)
}
