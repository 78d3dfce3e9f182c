package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
	"weir/internal/throttle"
)

// Limits of the playground. It is public, so they are small: one request costs some ten
// milliseconds.
const (
	maxPlayLimit    = 100
	maxPlayBurst    = 200
	maxPlayWindowMS = 86_400_000
	maxPlayHits     = 200 // of the visitor
	playWindows     = 3   // how many windows a chart shows
	playSubject     = "you"
	maxPlays        = 2 // concurrent; further ones wait
	playWait        = 500 * time.Millisecond
	// playFresh is how long an answer may be cached: the same request has the same answer until
	// another version of Weir runs.
	playFresh = "public, max-age=60"
)

// playground limits public requests: by network with counters in this instance's memory, and in
// total by places, for which networks take turns.
type playground struct {
	requests *throttle.Throttle
	places   *places.Rounds[netip.Prefix]
}

// playRules allow an address about as many requests as a person can click.
var playRules = throttle.Networks(
	limit.Rule{Slug: "playground", Algorithm: limit.TokenBucket, Limit: 300, Burst: 150, Window: throttle.Every(time.Minute)},
)

func newPlayground(now func() time.Time) *playground {
	return &playground{
		requests: throttle.New("play", throttle.Memory(now), throttle.Plain, now, playRules...),
		places:   places.NewRounds[netip.Prefix](maxPlays, maxWorking),
	}
}

// admit returns 0, or how long the client has to wait.
func (p *playground) admit(from origin.Networks) time.Duration {
	names := from.Names()
	_, wait := p.requests.Begin(context.Background(), names[:]...)
	return wait
}

// enter takes a place, or fails if none becomes free in time. It returns a function that releases
// the place.
func (p *playground) enter(ctx context.Context, from origin.Networks) (leave func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, playWait)
	defer cancel()
	if p.places.Take(ctx, from[:]...) != nil {
		return nil, errBusy
	}
	return p.places.Leave, nil
}

// playSettings are the settings in the address of the page.
type playSettings struct {
	Traffic, Window, Penalty string
	Limit, Burst             int64 // Burst 0: the same as Limit
	Hits                     []int64
	windowMS, penaltyMS      int64
	scenario                 *scenario
}

// playView is what the page shows.
type playView struct {
	playSettings
	Form    form
	Results []*timeline // empty if the form has errors
	Story   []string
	LastHit string
}

// SpanMS returns the length of the charts.
func (s *playSettings) SpanMS() int64 { return playWindows * s.windowMS }

// Instants returns the instants of all requests, in order, for the script.
func (v *playView) Instants() string {
	if len(v.Results) == 0 {
		return ""
	}
	at := make([]int64, len(v.Results[0].Hits))
	for i, h := range v.Results[0].Hits {
		at[i] = h.AtMS
	}
	return joined(at)
}

// playDefaults are the default settings.
var playDefaults = url.Values{"traffic": {"edge"}, "limit": {"10"}, "window": {"10s"}, "burst": {""}, "penalty": {""}, "hits": {""}}

// readPlay reads the settings. Omitted ones have the values of playDefaults.
func readPlay(query url.Values) (s playSettings, f form) {
	f.values = url.Values{}
	for name, usual := range playDefaults {
		f.values.Set(name, nameOr(query.Get(name), usual[0]))
	}
	s = playSettings{Traffic: f.Get("traffic"), Window: f.Get("window"), Penalty: f.Get("penalty")}
	if s.scenario = scenarioNamed(s.Traffic); s.scenario == nil {
		f.wrong("traffic", oneOfTheList)
	}
	s.Limit = f.wholeUpTo("limit", maxPlayLimit)
	if f.Get("burst") != "" {
		s.Burst = f.wholeUpTo("burst", maxPlayBurst)
	}
	s.windowMS = f.playLength("window")
	if s.Penalty != "" {
		s.penaltyMS = f.playLength("penalty")
	}
	if text := f.Get("hits"); text != "" && f.Error("window") == "" {
		s.readHits(text, &f)
	}
	return s, f
}

func (f *form) wholeUpTo(name string, most int64) int64 { return f.wholeFrom(name, 1, most) }

func (f *form) wholeFrom(name string, least, most int64) int64 {
	n := f.integer(name)
	if n < least || n > most {
		f.wrong(name, limit.MustBe("from %d to %d", least, most))
	}
	return n
}

func (f *form) playLength(name string) int64 {
	d, err := limit.ParseDuration(f.Get(name))
	if err != nil || d.MS%1000 != 0 || d.MS > maxPlayWindowMS {
		f.wrong(name, limit.MustBe("a duration in whole seconds, up to a day, such as 10s"))
	}
	return d.MS
}

func (s *playSettings) readHits(text string, f *form) {
	for field := range strings.SplitSeq(text, ",") {
		at, err := strconv.ParseInt(field, 10, 64)
		if err != nil || at < 0 || at >= s.SpanMS() || len(s.Hits) == maxPlayHits {
			f.wrong("hits", limit.MustBe("at most %d whole milliseconds below %d, with commas between", maxPlayHits, s.SpanMS()))
			return
		}
		s.Hits = append(s.Hits, at)
	}
}

// query returns the settings for an address, without defaults.
func (s *playSettings) query() string {
	values := url.Values{}
	for name, value := range map[string]string{
		"traffic": s.Traffic, "limit": itoa(s.Limit), "window": s.Window, "burst": burstText(s.Burst), "penalty": s.Penalty, "hits": joined(s.Hits),
	} {
		if value != playDefaults.Get(name) {
			values.Set(name, value)
		}
	}
	return values.Encode()
}

// rule returns a rule with the settings and this algorithm.
func (s *playSettings) rule(a limit.Algorithm) limit.Rule {
	r := limit.Rule{
		Slug: strings.ReplaceAll(a.String(), "_", "-"), Resource: "*", Algorithm: a, Limit: s.Limit, By: []string{"subject"},
		Window: limit.Window{Duration: limit.Duration{Text: s.Window, MS: s.windowMS}}, Penalty: limit.Duration{Text: s.Penalty, MS: s.penaltyMS},
	}
	if a.Bucket() {
		r.Burst = s.Burst
	}
	if a == limit.SlidingWindowBuckets {
		const parts = 5
		r.Precision.MS = s.windowMS / parts
	}
	return r
}

// play runs the traffic against each of these algorithms separately.
func (s *playSettings) play(ctx context.Context, algorithms []limit.Algorithm) ([]*timeline, error) {
	instants := append(s.scenario.instants(s.Limit, s.windowMS), s.Hits...)
	requests := onlyAt(playSubject, instants)
	results := make([]*timeline, len(algorithms))
	for i, a := range algorithms {
		t := trial{Title: algorithmTitles[a], Rule: s.rule(a), SpanMS: s.SpanMS(), Requests: requests, Watch: playSubject}
		result, err := t.run(ctx)
		if err != nil {
			return nil, err
		}
		results[i] = result
	}
	shareScale(results)
	return results, nil
}

// playOrder puts algorithms next to each other that are easy to compare, beginning with the
// simplest.
var playOrder = []limit.Algorithm{
	limit.FixedWindow, limit.SlidingWindowCounter, limit.FixedWindowFirstHit, limit.SlidingWindowLog,
	limit.SlidingWindowBuckets, limit.TokenBucket, limit.LeakyBucket, limit.LeakyBucketQueue,
}

// playView reads the request and runs it, within the limits for public requests.
func (d *dashboard) playView(r *http.Request) (*playView, error) {
	if wait := d.playground.admit(networksOf(r)); wait > 0 {
		return nil, &tooFastError{wait, playgroundLimited}
	}
	settings, f := readPlay(r.URL.Query())
	view := &playView{playSettings: settings, Form: f}
	if f.invalid() {
		return view, nil
	}
	leave, err := d.playground.enter(r.Context(), networksOf(r))
	if err != nil {
		return nil, err
	}
	defer leave()
	busy := d.turns.do(r.Context(), playgroundTurns, func() { view.Results, err = settings.play(r.Context(), playOrder) })
	if err := cmp.Or(busy, err); err != nil {
		return nil, err
	}
	view.Story, view.LastHit = compared(view.Results), lastHit(view.Results, settings.Hits)
	return view, nil
}

// lastHit describes the result of the visitor's newest hit.
func lastHit(results []*timeline, hits []int64) string {
	if len(hits) == 0 {
		return ""
	}
	at := hits[len(hits)-1]
	// of several at one instant, the last
	i := slices.IndexFunc(results[0].Hits, func(h timelineHit) bool { return h.AtMS > at }) - 1
	if i < 0 {
		i = len(results[0].Hits) - 1
	}
	denied := titles(results, func(t *timeline) bool { return !t.Hits[i].Allowed })
	text := "Your request at " + clockText(at, results[0].SpanMS)
	switch len(denied) {
	case 0:
		return text + " was allowed by all algorithms."
	case 1:
		text += " was denied by " + denied[0] + " only."
	case len(results):
		text += " was denied by all algorithms."
	default:
		text += " was denied by " + itoa(int64(len(denied))) + " of " + itoa(int64(len(results))) + "."
	}
	return text + " Shortest retry after: " + soonest(results, i) + "."
}

// soonest returns which of the denying algorithms would allow request i first.
func soonest(results []*timeline, i int) string {
	var best *timeline
	for _, t := range results {
		if h := t.Hits[i]; !h.Allowed && (best == nil || h.RetryAfterMS < best.Hits[i].RetryAfterMS) {
			best = t
		}
	}
	return lowerFirst(best.Title) + ", in " + span(best.Hits[i].RetryAfterMS)
}

// tooFastError means that an address or a person sends too many requests.
type tooFastError struct {
	wait time.Duration
	text string // a sentence that says what is limited
}

func (e *tooFastError) Error() string { return "too many requests" }

const playgroundLimited = "The playground has a rate limit."

// openFrame returns the frame of the person who is signed in, on a page that is open to everybody,
// and nil for a visitor. It is also nil while sessions cannot be read: the page needs no database.
// The answer with a frame is not cached.
func (d *dashboard) openFrame(w http.ResponseWriter, r *http.Request, title string) *frame {
	w.Header().Add("Vary", "Cookie") // of the session and of the theme
	session, err := d.session(r)
	if err != nil {
		return nil
	}
	f := newFrame(&session, r.URL.Path, d.Now(), d.DegradedSince())
	f.Title = title
	if session.Current != nil {
		f.Requests = d.opened.of(r.Context(), d.Store, session.Actor())
	}
	w.Header().Set("Cache-Control", "no-store")
	return &f
}

// playgroundPage is public and shows no tenant's data, except the frame of the person who is signed
// in.
func (d *dashboard) playgroundPage(w http.ResponseWriter, r *http.Request) error {
	view, err := d.playView(r)
	if err != nil {
		return err
	}
	status := playHeaders(w, view)
	return d.renderFor(playgroundTurns, w, r, status, playgroundPage(d.openFrame(w, r, "Playground"), view))
}

// playgroundStage returns the parts of the page that depend on the settings, for the script.
func (d *dashboard) playgroundStage(w http.ResponseWriter, r *http.Request) error {
	view, err := d.playView(r)
	if err != nil {
		return err
	}
	return d.renderFor(playgroundTurns, w, r, playHeaders(w, view), playPieces(view))
}

func playHeaders(w http.ResponseWriter, view *playView) (status int) {
	if view.Form.invalid() {
		return http.StatusUnprocessableEntity
	}
	w.Header().Set("Cache-Control", playFresh)
	return http.StatusOK
}
