package dashboard

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/check"
	"weir/internal/tenants"
)

// algorithmNote explains an algorithm to who chooses one. docs/algorithms.md says the same at
// length.
type algorithmNote struct{ How, Choose, Bound, Used, Example string }

var algorithmNotes = map[check.Algorithm]algorithmNote{
	check.SlidingWindowCounter: {
		How: "It keeps two numbers: how many passed in this window of the clock, and how many in the one before. " +
			"The earlier ones count by the share of their window that a window ending now would still cover. " +
			"So capacity comes back evenly instead of all at once, for the price of two numbers a customer.",
		Choose:  "in doubt. It is the default: cheap, and without a fixed window's double burst.",
		Bound:   "just under two limits, of which only one can come in a burst.",
		Used:    "this window + the window before × the share of it still covered, rounded down",
		Example: "Limit 100 a minute; 40 in the last minute, 80 in this one, which is half over. The 40 count as 20, so 100 are used, and the next passes a millisecond later.",
	},
	check.SlidingWindowLog: {
		How: "It remembers each request that passed within the last window. One that is exactly a window old counts no more. " +
			"Nothing is guessed, so the limit holds in every stretch of time, wherever you begin to measure. It pays with memory, an entry for each.",
		Choose:  "the limit must hold in every stretch of time, and is small.",
		Bound:   "the limit, wherever the window begins.",
		Used:    "the costs that passed after now − window",
		Example: "Limit 3 a minute; requests passed at seconds 0, 10 and 50. One at second 55 waits 5 seconds, until the first is a minute old.",
	},
	check.SlidingWindowBuckets: {
		How: "It cuts the window into parts and counts by part. The part of now and those before it that make up a window count in full. " +
			"A part that leaves the window frees all that was in it at once. That is nearly the log, at a small and fixed price. In the playground a window has five parts.",
		Choose:  "you want nearly the log, for large limits.",
		Bound:   "the limit in almost a window; two limits in a whole one.",
		Used:    "the counts of the last window ÷ precision parts",
		Example: "Limit 1000 an hour by the minute: sixty counts. What was used at 10:00:30 is free again at 11:00:00.",
	},
	check.FixedWindow: {
		How: "One number for each window of the clock, starting from nothing when the next begins. It may be a calendar day, week or month. " +
			"Nothing is easier to tell a customer: the reset is a time on the clock. But the end of one window and the start of the next lie side by side, and each has a whole limit.",
		Choose:  "you sell a quota by the hour, or by calendar day, week or month.",
		Bound:   "two limits, even within two milliseconds.",
		Used:    "what passed since the window began",
		Example: "Limit 10 000 a month: it starts anew on the 1st at 00:00 UTC, as an invoice does.",
	},
	check.FixedWindowFirstHit: {
		How: "A fixed window that begins with the customer's own first request, and lasts one window from there. " +
			"Not everybody starts anew at the same moment, which spares the machines behind. Who knows its trick can still get nearly two limits: one at the end, one at the start of the next.",
		Choose:  "each customer's period should begin with its own first request.",
		Bound:   "one less than two limits.",
		Used:    "what passed since the window's first request",
		Example: "Limit 5 in 24 hours for a trial. Who starts at 15:12 has five until 15:12 tomorrow.",
	},
	check.TokenBucket: {
		How: "A bucket holds tokens, up to its burst. It gains the limit in each window, evenly. A request takes its cost out, or is denied. " +
			"Who was quiet has saved up and may come in a burst; who never stops gets the plain rate.",
		Choose:  "bursts are fine, and a long-term rate is not to be passed.",
		Bound:   "the burst, and the limit that flows in meanwhile.",
		Used:    "the tokens that are missing",
		Example: "Limit 100 a second with burst 500: five hundred at once for who was quiet for five seconds, a hundred a second for who was not.",
	},
	check.LeakyBucket: {
		How: "The token bucket seen from the other side: requests pour in, the limit drains out in each window, and what would overflow the burst is denied. " +
			"It decides alike. Choose the picture that your customers understand better.",
		Choose:  "the same as a token bucket, told as a meter that drains.",
		Bound:   "the burst, and the limit that drains meanwhile.",
		Used:    "the level of the bucket",
		Example: "Limit 60 a minute with burst 10: a meter that shows at most ten, and falls by one each second.",
	},
	check.LeakyBucketQueue: {
		How: "It admits as the leaky bucket does, but tells whoever passes to wait until all before have drained. " +
			"So what stands behind sees one request after another, evenly, however they came. The burst is the room in the queue.",
		Choose:  "what is behind needs an even flow, and callers can wait.",
		Bound:   "the limit, each let go at its turn.",
		Used:    "the level of the bucket, and the wait until it is your turn",
		Example: "Limit 1 a second with burst 10: ten jobs that come at once go on after 0, 1, 2 … 9 seconds. The eleventh is denied.",
	},
}

// algorithmSlug is an algorithm's name in a path.
func algorithmSlug(a check.Algorithm) string { return strings.ReplaceAll(a.String(), "_", "-") }

// algorithmView is the page of one algorithm.
type algorithmView struct {
	Algorithm check.Algorithm
	Title     string
	Note      algorithmNote
	Pictures  []algorithmPicture
}

type algorithmPicture struct {
	Title, Story, URL string
	Timeline          *timeline
}

// algorithmPage shows what one algorithm makes of each traffic, with the numbers that the
// playground begins with.
func (d *dashboard) algorithmPage(w http.ResponseWriter, r *http.Request) error {
	i := slices.IndexFunc(playOrder, func(a check.Algorithm) bool { return algorithmSlug(a) == chi.URLParam(r, "algorithm") })
	if i < 0 {
		return tenants.ErrNotFound
	}
	if wait := d.playground.admit(addressOf(r.RemoteAddr)); wait > 0 {
		return d.playFailed(w, r, &tooFastError{wait})
	}
	leave, err := d.playground.enter(r.Context())
	if err != nil {
		return err
	}
	defer leave()
	a := playOrder[i]
	view := algorithmView{Algorithm: a, Title: algorithmTitles[a], Note: algorithmNotes[a]}
	for _, s := range scenarios {
		settings, _ := readPlay(url.Values{"traffic": {s.Name}})
		lanes, err := settings.play(r.Context(), []check.Algorithm{a})
		if err != nil {
			return err
		}
		if lanes[0].Asked > 0 {
			lanes[0].Title = s.Title
			view.Pictures = append(view.Pictures, algorithmPicture{s.Title, s.Story, "/playground?" + settings.query(), lanes[0]})
		}
	}
	w.Header().Set("Cache-Control", playFresh)
	w.Header().Add("Vary", "Cookie")
	return d.render(w, r, http.StatusOK, algorithmPage(&view))
}

var playLengths = []option{
	{"1s", "1 second"}, {"5s", "5 seconds"}, {"10s", "10 seconds"}, {"30s", "30 seconds"}, {"1m", "1 minute"}, {"1h", "1 hour"}, {"24h", "24 hours"},
}

// lengthOptions are the usual lengths, and one that somebody wrote into the address.
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
