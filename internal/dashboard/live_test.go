package dashboard

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

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
