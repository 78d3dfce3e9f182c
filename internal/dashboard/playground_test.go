package dashboard

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/origin"
	"weir/internal/tenants"
)

func values(query string) url.Values {
	v, err := url.ParseQuery(query)
	if err != nil {
		panic(err)
	}
	return v
}

// The playground is public, complete, and shows no tenant's data, also for caches. It needs no
// database.
func TestPlaygroundIsOpen(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "secret")
	s.serve(s.db.Open(tenants.Config{DatabaseURL: "postgres://x:y@127.0.0.1:1/z?sslmode=disable"}), "redis://127.0.0.1:1")
	for _, path := range []string{
		"/playground", "/playground?traffic=spammer&penalty=30s&limit=100&window=1h&burst=200", "/playground?traffic=own", "/playground?traffic=own&hits=0,5,17",
		"/playground/stage?traffic=random", "/playground/fixed-window", "/playground/leaky-bucket-queue",
	} {
		got := s.browser().get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.Equal(t, "public, max-age=60", got.header.Get("Cache-Control"), path)
		require.Empty(t, got.header.Values("Set-Cookie"), path)
		require.Contains(t, got.header.Values("Vary"), "Accept-Encoding", path)
		require.NotContains(t, got.body, "secret", path)
		got.header.Set("Cache-Control", "no-store")
		checkHeaders(t, got, path)
	}
	require.Contains(t, s.browser().get("/playground").header.Values("Vary"), "Cookie", "those of the theme and of the session")
	for _, s := range scenarios {
		require.NotEmpty(t, s.Lesson)
	}
	require.Equal(t, http.StatusNotFound, s.browser().get("/playground/none").status)
	require.Equal(t, http.StatusMethodNotAllowed, s.browser().post("/playground", url.Values{}).status)
}

// A person who is signed in keeps the frame of the dashboard, in an answer that is not cached.
func TestPlaygroundInTheFrame(t *testing.T) {
	s := newStack(t)
	ann := s.as("ann@example.com")
	for _, path := range []string{"/playground", "/playground/fixed-window"} {
		got := ann.get(path)
		require.Equal(t, http.StatusOK, got.status, path)
		require.Contains(t, got.body, `id="navigation"`, path)
		require.Contains(t, got.body, "ann@example.com", path)
		checkHeaders(t, got, path)
		got = s.browser().get(path)
		require.NotContains(t, got.body, `id="navigation"`, path)
	}
}

func TestPlaygroundSaysWhatHappened(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	got := b.get("/playground")
	require.Contains(t, got.body, "Fixed window allowed 20 within 1.9 seconds, twice the limit.")
	require.Equal(t, 8, strings.Count(got.body, `class="timeline"`))
	require.Contains(t, got.body, `value="edge" checked`)
	for _, a := range playOrder {
		require.Contains(t, got.body, algorithmTitles[a])
		require.Contains(t, got.body, `href="/playground/`+algorithmSlug(a)+`"`)
		note := algorithmNotes[a]
		for _, text := range []string{note.How, note.Choose, note.Bound, note.Used, note.Example} {
			require.NotEmpty(t, text, a)
		}
	}
	got = b.get("/playground?traffic=own&limit=1&hits=0,4000")
	require.Contains(t, got.body, "Your request at 4 s was denied by all algorithms. Shortest retry after: ")
	got = b.get("/playground?traffic=own&limit=1&hits=4000,0")
	require.Contains(t, got.body, "Your request at 0 s was allowed by all algorithms.", "the newest request is last, wherever it is on the time axis")
	got = b.get("/playground?traffic=own")
	require.Contains(t, got.body, "No requests.")
}

// Settings in the address have limits, errors are explained, and invalid settings are not drawn.
func TestPlaygroundRefuses(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	for query, word := range map[string]string{
		"limit=0": "from 1 to 100", "limit=101": "from 1 to 100", "limit=x": "whole number", "limit=99999999999999999999": "whole number",
		"burst=201": "from 1 to 200", "window=500ms": "whole seconds", "window=1500ms": "whole seconds", "window=2d": "up to a day", "window=month": "whole seconds",
		"penalty=forever": "whole seconds", "traffic=ddos": "one of the listed options", "hits=1,x": "Hits must be", "hits=30000": "Hits must be", "hits=-1": "Hits must be",
		"hits=" + strings.Repeat("1,", 200) + "1": "Hits must be", "traffic=%22%3E%3Cscript%3E": "one of the listed options", "window=%22%3E%3Cscript%3E": "whole seconds",
	} {
		for _, path := range []string{"/playground?", "/playground/stage?"} {
			got := b.get(path + query)
			require.Equal(t, http.StatusUnprocessableEntity, got.status, query)
			require.Contains(t, got.body, "No charts", query)
			require.NotContains(t, got.body, `class="timeline"`, query)
			require.NotContains(t, got.body, "<script>", query)
			checkHeaders(t, got, query)
			if path == "/playground?" {
				require.Contains(t, got.body, word, query)
			}
		}
	}
}

// Public requests must not take CPU time from checks: each address has a rate, and all together
// have few places.
func TestPlaygroundIsLimited(t *testing.T) {
	s := newStack(t)
	b := s.browser()
	path := "/playground/stage?traffic=own"
	for i := range playRules[0].Burst {
		require.Equal(t, http.StatusOK, b.get(path).status, i)
	}
	got := b.get(path)
	require.Equal(t, http.StatusTooManyRequests, got.status)
	require.Equal(t, "1", got.header.Get("Retry-After"))
	require.Contains(t, got.body, "Try again in 1 second")
	checkHeaders(t, got, path)
	require.Equal(t, http.StatusTooManyRequests, b.get("/playground/token-bucket").status, "the other pages count, too")
	require.Equal(t, http.StatusOK, b.get("/login").status, "other pages are not affected")
	s.clock.move(time.Second)
	require.Equal(t, http.StatusOK, b.get(path).status)
}

func TestPlaygroundHasFewPlaces(t *testing.T) {
	p := newPlayground(time.Now)
	for range maxPlays {
		_, err := p.enter(t.Context(), origin.Networks{})
		require.NoError(t, err)
	}
	_, err := p.enter(t.Context(), origin.Networks{})
	require.ErrorIs(t, err, errBusy)
	p.places.Leave()
	leave, err := p.enter(t.Context(), origin.Networks{})
	require.NoError(t, err)
	leave()
	_, err = p.enter(t.Context(), origin.Networks{})
	require.NoError(t, err)
}

// The address contains all settings, so that a chart can be shared.
func TestPlaygroundAddress(t *testing.T) {
	for _, query := range []string{"", "burst=20&hits=1%2C2&limit=5&penalty=30s&traffic=own&window=1m"} {
		s, f := readPlay(values(query))
		require.False(t, f.invalid())
		require.Equal(t, query, s.query())
	}
}

// Each page of an algorithm links to the others, and shows every traffic.
func TestAlgorithmPages(t *testing.T) {
	s := newStack(t)
	for _, a := range playOrder {
		got := s.browser().get("/playground/" + algorithmSlug(a))
		require.Equal(t, http.StatusOK, got.status)
		require.Equal(t, len(scenarios)-1, strings.Count(got.body, `class="timeline"`))
		require.Len(t, regexp.MustCompile(`href="/playground/[a-z-]+"`).FindAllString(got.body, -1), len(playOrder)-1)
		require.Contains(t, got.body, "<code>"+a.String()+"</code>")
	}
}
