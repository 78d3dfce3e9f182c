package dashboard

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// events is an open stream, as a browser reads it.
type events struct {
	t      *testing.T
	lines  chan string
	cancel context.CancelFunc
}

// listen opens a stream.
func (b *browser) listen(path string) *events {
	b.s.t.Helper()
	ctx, cancel := context.WithCancel(b.s.t.Context())
	response, err := b.http.Do(b.request(http.MethodGet, path, nil).WithContext(ctx))
	require.NoError(b.s.t, err)
	require.Equal(b.s.t, http.StatusOK, response.StatusCode)
	require.Equal(b.s.t, "text/event-stream", response.Header.Get("Content-Type"))
	e := &events{b.s.t, make(chan string, 100_000), cancel}
	go func() {
		defer close(e.lines)
		defer response.Body.Close()
		reader := bufio.NewReader(response.Body)
		for {
			line, err := reader.ReadString('\n')
			if err != nil {
				return
			}
			e.lines <- line
		}
	}()
	b.s.t.Cleanup(cancel)
	return e
}

// awaits waits for a line that contains a text.
func (e *events) awaits(text string) {
	e.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case line, open := <-e.lines:
			require.True(e.t, open, "the stream ended before %q", text)
			if strings.Contains(line, text) {
				return
			}
		case <-deadline:
			require.Fail(e.t, "no event with this text", text)
		}
	}
}

// ends waits until the server ends the stream.
func (e *events) ends() {
	e.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case _, open := <-e.lines:
			if !open {
				return
			}
		case <-deadline:
			require.Fail(e.t, "the stream continues")
		}
	}
}

// An open page shows a denial without a reload; a page of another tenant does not.
func TestLiveDecisions(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	ann, bob := s.as("ann@example.com").listen("/live/decisions"), s.as("bob@example.com").listen("/live/decisions")
	bob.awaits("No recent denials")
	ann.awaits("No recent denials")
	s.ask(s.a, "user_1", 25)
	ann.awaits(`href="/subjects/user_1"`)
	s.ask(s.a, "<script>", 25)
	ann.awaits("&lt;script&gt;")
	select {
	case line := <-bob.lines:
		require.NotContains(t, line, "user_1")
	default:
	}
}

func TestLiveOverview(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	e := s.as("ann@example.com").listen("/live/overview?period=1h")
	e.awaits("event: now")
	e.awaits("event: series")
	s.decided(s.a, usage.Minute, 0, "", 4321, 7)
	e.awaits("4,321")
	got := s.as("ann@example.com").get("/live/overview?period=2h")
	require.Equal(t, http.StatusBadRequest, got.status)
}

// After a sign-out or the end of a membership, the stream ends. One page too many is refused.
func TestLiveEnds(t *testing.T) {
	s := newStack(t)
	member := s.member(s.a, "viewer@example.com", tenants.Viewer)
	leaving, removed, staying := s.as("ann@example.com"), s.as("viewer@example.com"), s.as("ann@example.com")
	out, thrown, on := leaving.listen("/live/decisions"), removed.listen("/live/overview"), staying.listen("/live/overview")
	require.Equal(t, http.StatusSeeOther, leaving.post("/logout", nil).status)
	out.ends()
	require.NoError(t, s.store.RemoveMember(t.Context(), s.a, member.ID, tenants.Match{}))
	thrown.ends()
	on.awaits("event: now")

	for range maxSessionStreams - 1 {
		staying.listen("/live/overview")
	}
	got := staying.get("/live/overview")
	require.Equal(t, http.StatusServiceUnavailable, got.status)
	require.Equal(t, "10", got.header.Get("Retry-After"))
	require.Equal(t, http.StatusOK, staying.get("/").status, "the page itself is still served")

	close(s.stopping)
	on.ends()
	require.Equal(t, http.StatusServiceUnavailable, staying.get("/live/overview").status, "the browser must connect elsewhere")
	require.Equal(t, http.StatusSeeOther, s.browser().get("/live/overview").status)
}

// A browser that connects its live page again, while nobody is there, keeps no session in use.
func TestLivePagesAreNoUse(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for range 3 {
		s.clock.move(tenants.SessionIdle / 4)
		b.listen("/live/overview").awaits(": open")
	}
	s.clock.move(tenants.SessionIdle / 4)
	b.signedIn(false, "it was not used since the sign-in")
}

// Neither does a part of a page that the page loads again every few seconds.
func TestRepeatedPartsAreNoUse(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for range 3 {
		s.clock.move(tenants.SessionIdle / 4)
		r := b.request(http.MethodGet, "/rules", nil)
		r.Header.Set(repeatedHeader, "true")
		require.Equal(t, http.StatusOK, b.send(r).status)
	}
	s.clock.move(tenants.SessionIdle / 4)
	b.signedIn(false, "it was not used since the sign-in")
}

// A person with many sessions does not get more streams, and leaves some for others.
func TestLiveSharesStreams(t *testing.T) {
	s := newStack(t)
	s.member(s.a, "viewer@example.com", tenants.Viewer)
	for range maxPersonStreams / maxSessionStreams {
		b := s.as("ann@example.com")
		for range maxSessionStreams {
			b.listen("/live/decisions").awaits(": open")
		}
	}
	require.Equal(t, http.StatusServiceUnavailable, s.as("ann@example.com").get("/live/decisions").status)
	s.as("viewer@example.com").listen("/live/decisions").awaits(": open")
}

// Streams use no places of pages: any number of them leaves places free.
func TestLiveLeavesRoom(t *testing.T) {
	s := newStack(t)
	s.staff()
	for i := range maxWorking/maxSessionStreams + 1 {
		b := s.as(string(tenants.Roles[i%len(tenants.Roles)]) + "@example.com")
		for range maxSessionStreams {
			b.listen("/live/decisions").awaits(": open")
		}
	}
	require.Equal(t, http.StatusOK, s.as("ann@example.com").get("/rules").status)
}

// fillStreams opens live pages of other tenants, one of each in turn. It returns how many of each
// tenant have ended so far.
func (s *stack) fillStreams(n int, others ...uuid.UUID) (ended func() map[uuid.UUID]int) {
	s.t.Helper()
	h := s.pages.hub
	h.mu.Lock()
	h.watching = true // or they would end, because their sessions do not exist
	h.mu.Unlock()
	open := map[*openPage]*topic{}
	still := func(context.Context, int) ([]part, error) { return nil, nil }
	for i := range n {
		v := &visit{session: tenants.Session{ID: uuid.New(), PersonID: uuid.New()}}
		page, shown, err := h.join(v, topicKey{others[i%len(others)], "still"}, still)
		require.NoError(s.t, err)
		open[page] = shown
	}
	s.t.Cleanup(func() {
		for page, shown := range open {
			h.leave(page, shown)
		}
	})
	return func() map[uuid.UUID]int {
		found := map[uuid.UUID]int{}
		for page := range open {
			if stopped(page.over) {
				found[page.tenant]++
			}
		}
		return found
	}
}

// Three tenants with all live pages of an instance leave some to a tenant without any: the one with
// the most loses one.
func TestLiveStreamsAreShared(t *testing.T) {
	s := newStack(t)
	x, y, z := uuid.New(), uuid.New(), uuid.New()
	ended := s.fillStreams(maxStreams, x, y, z) // x has one more
	s.as("bob@example.com").listen("/live/decisions").awaits(": open")
	require.Eventually(t, func() bool { return len(ended()) > 0 }, time.Minute, time.Millisecond)
	require.Equal(t, map[uuid.UUID]int{x: 1}, ended())
}

// A page that ends for one of another tenant hears when to connect again, and does not end others
// then.
func TestLiveEndsForAnotherTenant(t *testing.T) {
	s := newStack(t)
	others := make([]uuid.UUID, maxStreams-maxSessionStreams)
	for i := range others {
		others[i] = uuid.New()
	}
	ended := s.fillStreams(len(others), others...)
	ann, bob := s.as("ann@example.com"), s.as("bob@example.com")
	first := ann.listen("/live/decisions")
	first.awaits(": open")
	for range maxSessionStreams - 1 {
		ann.listen("/live/decisions").awaits(": open")
	}
	bob.listen("/live/decisions").awaits(": open")
	first.awaits("retry: 30000")
	first.ends()
	require.Equal(t, http.StatusServiceUnavailable, ann.get("/live/decisions").status)
	require.Empty(t, ended())
}
