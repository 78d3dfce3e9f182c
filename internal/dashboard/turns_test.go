package dashboard

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/a-h/templ"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/places"
	"weir/internal/tenants"
)

// turnless is the dashboard of a stack whose turns are all taken.
func (s *stack) turnless() (leave func()) {
	s.t.Helper()
	s.pages.turns = newPageTurns(places.NewProcessors(2).Short)
	s.pages.turns.wait = 0
	leave, err := s.pages.turns.turns.Take(s.t.Context(), s.b.TenantID())
	require.NoError(s.t, err)
	return leave
}

// Without a turn, a page is answered 503, and its form is not, because the change is made. A page
// has one turn after the other, and none when it has ended.
func TestPagesTakeTurns(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "turn")
	b := s.as("ann@example.com")
	leave := s.turnless()
	for _, path := range []string{"/", "/usage", "/audit", "/subjects/nobody", "/plans", "/rules/requests/history", "/account"} {
		got := b.get(path)
		require.Equal(t, http.StatusServiceUnavailable, got.status, path)
		require.Equal(t, "1", got.header.Get("Retry-After"), path)
		require.Contains(t, got.body, "Too busy", path)
	}
	require.Equal(t, http.StatusOK, s.browser().get("/login").status, "without a tenant")
	require.Equal(t, http.StatusServiceUnavailable, s.browser().get("/playground").status)
	require.Equal(t, http.StatusUnprocessableEntity, b.write("/rules", map[string][]string{"slug": {"?"}}).status)
	leave()
	for _, path := range []string{"/", "/usage", "/audit", "/subjects/nobody", "/rules/new", "/plans", "/rules/requests/history", "/account"} {
		require.Equal(t, http.StatusOK, b.get(path).status, path)
	}
}

// A page that is refused waits for its answer, and others do not: refusals take a processor, too.
// After the answer, a proxy would use the connection for requests of others. A browser that leaves
// ends the wait.
func TestRefusedPagesPause(t *testing.T) {
	s := newStack(t)
	synctest.Test(t, func(t *testing.T) {
		waits := func(ctx context.Context, err error) time.Duration {
			answered := &answeredAt{ResponseRecorder: httptest.NewRecorder()}
			left := false
			state := &tracked{ResponseWriter: answered, place: func() { left = true }, done: ctx.Done()}
			start := time.Now()
			s.pages.answer(state, httptest.NewRequestWithContext(context.WithValue(ctx, trackedKey{}, state), http.MethodGet, "/", nil), err)
			require.True(t, left)
			require.Equal(t, state.rested, answered.at.Sub(start))
			return state.rested
		}
		require.Equal(t, refusedRest, waits(t.Context(), errBusy))
		require.Equal(t, refusedRest, waits(t.Context(), errUnread))
		require.Zero(t, waits(t.Context(), tenants.ErrNotFound))
		paused, site := &s.pages.paused, siteOf(httptest.NewRequest(http.MethodGet, "/", nil))
		paused.of[site], paused.all = 999, 999
		require.Equal(t, 1000*refusedEach, waits(t.Context(), errBusy), "with very many connections")
		paused.of[site], paused.all = 9000, 9000
		require.Equal(t, refusedMostRest, waits(t.Context(), errBusy))
		paused.of = map[string]int{"another tenant": 1000}
		paused.all = 1000
		require.Equal(t, 125*refusedEach, waits(t.Context(), errBusy), "those of others count less")
		require.Equal(t, map[string]int{"another tenant": 1000}, paused.of)
		paused.of, paused.all = nil, 0
		gone, leave := context.WithCancel(t.Context())
		leave()
		require.Zero(t, waits(gone, errBusy))
	})
}

// Errors pause while they use up the processors, and so do redirects of clients who are not signed
// in.
func TestFailedPagesPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			status int
			tenant uuid.UUID
			pauses bool
			client string
		}{
			{http.StatusOK, uuid.Nil, false, ""}, {http.StatusNotModified, uuid.Nil, false, ""}, {http.StatusSeeOther, uuid.UUID{1}, false, ""},
			{http.StatusSeeOther, uuid.Nil, true, "here"}, {http.StatusNotFound, uuid.Nil, true, "here"},
			{http.StatusUnprocessableEntity, uuid.UUID{1}, true, string((&uuid.UUID{1})[:])},
		} {
			noted := int64(0)
			state := &tracked{ResponseWriter: httptest.NewRecorder(), tenant: c.tenant, done: t.Context().Done(), site: "here", fail: func(client string, refusals int64) time.Duration {
				require.Equal(t, c.client, client)
				noted += refusals
				return time.Second
			}}
			began := time.Now()
			state.WriteHeader(c.status)
			require.Equal(t, c.pauses, time.Since(began) == time.Second, c)
			require.Equal(t, c.pauses, noted == failedRefusals, c)
		}
	})
}

// Pages without a tenant take the turns of their site, and nobody is refused. Before, 250
// connections without a session kept the processors from checks with sign-up pages and pages that
// do not exist.
func TestPagesWithoutATenantTakeTurns(t *testing.T) {
	s := newStack(t)
	leave := s.turnless()
	unknown := s.browser()
	require.Equal(t, http.StatusOK, unknown.get("/login").status, "nobody is kept from it")
	require.Equal(t, http.StatusNotFound, unknown.get("/nowhere").status)
	s.pages.turns.wait = time.Hour
	answered := make(chan int)
	for path, status := range map[string]int{"/login": http.StatusOK, "/nowhere": http.StatusNotFound} {
		go func() { answered <- unknown.get(path).status }()
		for s.pages.turns.turns.Waiting() == 0 {
			runtime.Gosched()
		}
		leave()
		require.Equal(t, status, <-answered)
		leave, _ = s.pages.turns.turns.TakeWithin(t.Context(), s.b.TenantID(), 0)
		require.NotNil(t, leave, "no turn is lost")
	}
	leave()
}

// answeredAt notes when the answer began.
type answeredAt struct {
	*httptest.ResponseRecorder
	at time.Time
}

func (a *answeredAt) WriteHeader(status int) {
	a.at = time.Now()
	a.ResponseRecorder.WriteHeader(status)
}

// A turn ends with a panic of the page.
func TestTurnsEndWithAPanic(t *testing.T) {
	t.Parallel()
	d := &dashboard{turns: newPageTurns(places.NewProcessors(2).Short)}
	d.turns.wait = 0
	page := templ.ComponentFunc(func(context.Context, io.Writer) error { panic("broken") })
	r := httptest.NewRequest(http.MethodGet, "/", http.NoBody)
	for range 2 {
		require.PanicsWithValue(t, "broken", func() { _ = d.renderFor(playgroundTurns, httptest.NewRecorder(), r, http.StatusOK, page) })
	}
}

// A live page waits for its turn, and loses nothing meanwhile.
func TestLivePagesTakeTurns(t *testing.T) {
	t.Parallel()
	d := &dashboard{turns: newPageTurns(places.NewProcessors(2).Short)}
	h := newHub(d)
	leave, err := d.turns.turns.Take(t.Context(), uuid.UUID{1})
	require.NoError(t, err)
	shown := &topic{key: topicKey{tenant: uuid.UUID{2}}, changed: make(chan struct{})}
	done := make(chan error)
	go func() { done <- h.show(t.Context(), shown, []part{{"rows", templ.Raw("rows")}}) }()
	for d.turns.turns.Waiting() == 0 {
		select {
		case <-done:
			t.Fatal("it did not wait")
		default:
		}
	}
	parts, _, _ := shown.since(0)
	require.Empty(t, parts)
	leave()
	require.NoError(t, <-done)
	parts, _, _ = shown.since(0)
	require.Len(t, parts, 1)

	_, err = d.turns.turns.Take(t.Context(), uuid.UUID{1})
	require.NoError(t, err)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, h.show(over, shown, []part{{"rows", templ.Raw("more")}}), context.Canceled)
}

// Pages of many rows are long work, so that those of few rows do not wait for them.
func TestPagesOfManyRowsAreLongWork(t *testing.T) {
	t.Parallel()
	processors := places.NewProcessors(2)
	d := &dashboard{turns: newPageTurns(processors.Short), longTurns: newPageTurns(processors.Long)}
	d.turns.wait, d.longTurns.wait = 0, 0
	render := func(rows int) error {
		ctx := context.WithValue(t.Context(), trackedKey{}, &tracked{tenant: uuid.UUID{1}})
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", http.NoBody)
		return d.renderRows(rows, httptest.NewRecorder(), r, http.StatusOK, templ.Raw("rows"))
	}
	leave, err := processors.Long.Take(t.Context(), uuid.UUID{2})
	require.NoError(t, err)
	require.NoError(t, render(fewRows))
	require.ErrorIs(t, render(fewRows+1), errBusy)
	leave()
	leave, err = processors.Short.Take(t.Context(), uuid.UUID{2})
	require.NoError(t, err)
	require.ErrorIs(t, render(fewRows), errBusy)
	require.NoError(t, render(fewRows+1))
	leave()
}

// A replay is long work. Before, 40 000 requests had a turn of short work, and large checks waited.
func TestReplaysAreLongWork(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.asked(30*time.Minute, "orders:create", map[string]int64{"heavy": 50})
	b := s.as("ann@example.com")
	s.pages.longTurns = newPageTurns(places.NewProcessors(2).Long)
	s.pages.longTurns.wait = 0
	const replay, tries = "Replay of the last", "requests allowed."
	leave, err := s.pages.longTurns.turns.Take(t.Context(), s.b.TenantID())
	require.NoError(t, err)
	got := b.preview("rule", "requests", "limit", "7")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "Too many previews")
	require.NotContains(t, got.body, replay)
	require.Contains(t, b.preview("resource", "other:*").body, tries, "without checks, there is no replay")
	leave()
	require.Contains(t, b.preview("rule", "requests", "limit", "7").body, replay)
}

// What the limit of a chart was is computed in turns, too.
func TestLimitsOfChartsTakeTurns(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.follow(t.Context())
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	values, _, err := countedValues("user_7", nil)
	require.NoError(t, err)
	limits := s.checker.Inspect(t.Context(), policy, values).Rules
	kept := &keptTrail{marks: []chartMark{}} // these take a turn of their own
	draw := func() error {
		_, err := s.pages.subjectChart(t.Context(), s.a, "user_7", periods[0], limits, s.clock.Now(), kept)
		return err
	}
	leave := s.turnless()
	require.ErrorIs(t, draw(), errBusy, "the history of the limit")
	leave()
	require.NoError(t, draw())
	require.NotNil(t, kept.limits)
	leave = s.turnless()
	require.ErrorIs(t, draw(), errBusy, "its line")
	leave()
	require.NoError(t, draw())
}
