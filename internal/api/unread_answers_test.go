package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/internal/overload"
	"weir/internal/places"
)

// startHTTP2 sends the preface of a client and its settings on a connection, which the end of the
// test closes.
func startHTTP2(t *testing.T, conn net.Conn, settings ...http2.Setting) *http2.Framer {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err := io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	require.NoError(t, framer.WriteSettings(settings...))
	return framer
}

// openUnread opens n streams with a request each, and permits no byte of an answer's body. It
// returns when the heads of all answers have arrived, with the number of those with each status.
// The bodies stay unread until the test ends.
func openUnread(t *testing.T, url string, trust *tls.Config, n int, method, path, body string, fields ...string) map[string]int {
	t.Helper()
	config := trust.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), config)
	require.NoError(t, err)
	framer := startHTTP2(t, conn, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	fields = append([]string{":method", method, ":scheme", "https", ":authority", "example.com", ":path", path}, fields...)
	for i := range n {
		block.Reset()
		for at := 0; at < len(fields); at += 2 {
			require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: fields[at], Value: fields[at+1]}))
		}
		id := uint32(2*i + 1)
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{
			StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: body == "",
		}))
		if body != "" {
			require.NoError(t, framer.WriteData(id, true, []byte(body)))
		}
	}
	statuses := map[string]int{}
	decoder := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == ":status" {
			statuses[f.Value]++
		}
	})
	for heads := 0; heads < n; {
		frame, err := framer.ReadFrame()
		require.NoError(t, err)
		if head, ok := frame.(*http2.HeadersFrame); ok {
			_, err := decoder.Write(head.HeaderBlockFragment())
			require.NoError(t, err)
			heads++
		}
	}
	return statuses
}

// A client asks for paths that do not exist, and reads no answer. Its requests use no places that
// others need. Before, 100 such connections could fill the places of all requests for ten seconds.
func TestUnreadProblemsUseNoPlaces(t *testing.T) {
	s := newCheckStack(t)
	const n, bound = 60, 50
	url, trust := s.secureServer(bound)
	require.Equal(t, map[string]int{"404": n}, openUnread(t, url, trust, n, http.MethodGet, "/"+strings.Repeat("&", 4000), ""))
	require.Equal(t, 200, checkAs(t, url, trust, s.other))
	require.Equal(t, map[string]int{"404": n}, openUnread(t, url, trust, n, http.MethodGet, "/none", ""))
}

// Answers that a tenant does not read count for the tenant, and for nobody else. The requests
// come in rounds that are smaller than the tenant's share of bodies that have not arrived, so
// that only its share of requests being served can refuse them.
func TestUnreadBatchesCountForTheTenant(t *testing.T) {
	s := newCheckStack(t)
	const n, bound = 10, 50
	url, trust := s.secureServer(bound)
	batch := `{"checks":[` + strings.Repeat(`{"subject":"unread"},`, 19) + `{"subject":"unread"}]}`
	fields := []string{"authorization", "Bearer " + s.key, "content-type", "application/json"}
	served, refused := 0, 0
	for range bound/2/n + 1 {
		statuses := openUnread(t, url, trust, n, http.MethodPost, "/v1/check/batch", batch, fields...)
		served += statuses["200"]
		refused += statuses["503"]
	}
	// Between the decision and the answer, a batch does not count for a moment.
	require.GreaterOrEqual(t, served, bound/2, "its share")
	require.LessOrEqual(t, served, bound/2+2)
	require.Equal(t, (bound/2/n+1)*n, served+refused)
	require.Equal(t, 503, checkAs(t, url, trust, s.key), "it has its share")
	require.Equal(t, 200, checkAs(t, url, trust, s.other))
}

// Answers of simulations are long, so a tenant has two that it does not read. Before, one tenant
// could have 64, of 16 MiB each.
func TestUnreadSimulations(t *testing.T) {
	s := newCheckStack(t)
	url, trust := s.secureServer(1000)
	body := `{"rules":[{"slug":"one","limit":1,"window":"1m"}],"traffic":{"pattern":"burst","requests":200,"at_ms":[0]}}`
	simulate := func(key string) map[string]int {
		return openUnread(t, url, trust, 1, http.MethodPost, "/v1/simulate", body, "authorization", "Bearer "+key, "content-type", "application/json")
	}
	for range maxTenantSimulationAnswers {
		require.Equal(t, map[string]int{"200": 1}, simulate(s.key))
	}
	require.Equal(t, map[string]int{"429": 1}, simulate(s.key))
	require.Equal(t, map[string]int{"200": 1}, simulate(s.other))
}

// Documents that a client does not read use no places of other clients.
func TestUnreadDocumentsUseNoPlaces(t *testing.T) {
	s := newCheckStack(t)
	const n, bound = 60, 100
	url, trust := s.secureServer(bound)
	for range n { // not at once, because they are limited until their answers begin
		require.Equal(t, map[string]int{"200": 1}, openUnread(t, url, trust, 1, http.MethodGet, "/docs", ""))
	}
	require.Equal(t, 200, statusOf(t, url+"/docs", trust))
}

// The path in a problem is cut, between characters.
func TestLongInstance(t *testing.T) {
	s := newCheckStack(t)
	for _, ask := range []struct{ path, instance string }{
		{"/" + strings.Repeat("a", 255), "/" + strings.Repeat("a", 255)},
		{"/" + strings.Repeat("a", 256), "/" + strings.Repeat("a", 255)},
		{"/" + strings.Repeat("%C3", 100), "/" + strings.Repeat("%C3", 85)},
		{"/a" + strings.Repeat("%C3", 100), "/a" + strings.Repeat("%C3", 84)},
		{"/aa" + strings.Repeat("%C3", 100), "/aa" + strings.Repeat("%C3", 84)},
		{"/" + strings.Repeat("a", 2000), "/" + strings.Repeat("a", 255)},
		{"/" + strings.Repeat("%61", 2000), "/" + strings.Repeat("%61", 85)},
		{"/a" + strings.Repeat("%2F", 2000), "/a" + strings.Repeat("%2F", 84)},
		{"/aa" + strings.Repeat("%C3%BC", 1000), "/aa" + strings.Repeat("%C3%BC", 42)},
	} {
		r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, s.contract.url+ask.path, nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Contains(t, string(body), `"instance":"`+ask.instance+`"`)
	}
}

// addLongSubjects registers n subjects of about 9 KB each.
func addLongSubjects(t *testing.T, s *checkStack, n int) {
	t.Helper()
	labels := `"l0":"x"`
	for i := 1; i < 32; i++ {
		labels += `,"l` + itoa(int64(i)) + `":"` + strings.Repeat("x", 256) + `"`
	}
	var lines bytes.Buffer
	for i := range n {
		fmt.Fprintf(&lines, `{"subject":"long_%d","labels":{%s}}`+"\n", i, labels)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.server.URL+"/v1/bulk/subjects", &lines)
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", jsonLinesType)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}

// slowClient reads the head of an answer at once, and the body when it is released. A real
// connection would end after the write timeout.
type slowClient struct {
	header http.Header
	status chan int // 1 place
	once   sync.Once
	read   <-chan struct{}
}

func (c *slowClient) Header() http.Header { return c.header }

func (c *slowClient) WriteHeader(code int) { c.once.Do(func() { c.status <- code }) }

func (c *slowClient) Write(p []byte) (int, error) {
	c.WriteHeader(http.StatusOK)
	<-c.read
	return len(p), nil
}

// slowClients returns a function that sends a request whose answer is not read, and returns the
// status. read reads all answers, also those that follow, and returns when they have ended.
func slowClients(t *testing.T, s *checkStack) (ask func(key, method, path, body string, headers ...header) int, read func()) {
	t.Helper()
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	handler := New(Config{Bound: overload.Fixed(1000)}, deps)
	all := make(chan struct{})
	var running sync.WaitGroup
	start := sync.OnceFunc(func() { close(all) })
	read = func() { start(); running.Wait() }
	t.Cleanup(read)
	return func(key, method, path, body string, headers ...header) int {
		r := httptest.NewRequestWithContext(context.Background(), method, path, strings.NewReader(body))
		r.Header.Set("Authorization", "Bearer "+key)
		if body != "" {
			r.Header.Set("Content-Type", jsonType)
		}
		for _, h := range headers {
			r.Header.Set(h.name, h.value)
		}
		if method == http.MethodPost && path == bulkPath {
			r.Header.Set("Content-Type", jsonLinesType)
		}
		c := &slowClient{header: http.Header{}, status: make(chan int, 1), read: all}
		running.Go(func() { handler.ServeHTTP(c, r) })
		return <-c.status
	}, read
}

// A tenant has 32 MiB of long answers that it does not read. Before, it could have 64 answers of
// any size: pages of 9 MiB took 655 MiB, and configurations in YAML 1183 MiB.
func TestUnreadAnswersAreBoundedByBytes(t *testing.T) {
	s := newCheckStack(t)
	addLongSubjects(t, s, 200)
	ask, read := slowClients(t, s)
	const page, size = "/v1/subjects?limit=200", 200 * 31 * 256 // it is a little longer
	unread := 0
	for ; unread*size <= maxTenantUnread; unread++ {
		if ask(s.key, http.MethodGet, page, "") == http.StatusServiceUnavailable {
			break
		}
	}
	require.Greater(t, unread, 10)
	require.LessOrEqual(t, unread*size, maxTenantUnread)
	require.Equal(t, 200, ask(s.key, http.MethodGet, "/v1/subjects?limit=1", ""), "short answers do not count")
	require.Equal(t, 200, ask(s.other, http.MethodGet, page, ""), "of another tenant")

	// The long answer about a change counts, but is never refused: the change was made.
	require.Equal(t, 503, ask(s.key, http.MethodPut, "/v1/config?prune=true&dry_run=true", `{"subjects":[]}`))
	require.Equal(t, 200, ask(s.key, http.MethodPut, "/v1/config?prune=true", `{"subjects":[]}`))
	read()
	addLongSubjects(t, s, 200)
	require.Equal(t, 200, ask(s.key, http.MethodGet, page, ""), "all answers were read")
}

// Exports and configurations with subjects have places until they are sent, two of each for a
// tenant. Before, an unread export kept 1000 rows of any size, and a tenant could have 64 of them.
func TestUnreadDownloads(t *testing.T) {
	s := newCheckStack(t)
	addLongSubjects(t, s, 20)
	for _, paths := range [][]string{
		{"/v1/audit?format=jsonl", "/v1/audit?format=csv", "/v1/security-events?format=csv", "/v1/usage/metered?format=csv", "/v1/bulk/subjects"},
		{"/v1/config?subjects=true", "/v1/config?subjects=true&format=yaml"},
	} {
		ask, read := slowClients(t, s)
		for range maxTenantExports {
			require.Equal(t, 200, ask(s.key, http.MethodGet, paths[0], ""))
		}
		for _, path := range paths {
			require.Equal(t, 503, ask(s.key, http.MethodGet, path, ""), path)
			require.Equal(t, 200, ask(s.other, http.MethodGet, paths[0], ""), path)
			read()
			require.Equal(t, 200, ask(s.key, http.MethodGet, path, ""), path)
			read()
			ask, read = slowClients(t, s)
			for range maxTenantExports {
				require.Equal(t, 200, ask(s.key, http.MethodGet, paths[0], ""))
			}
		}
		read()
	}
}

// A client that does not read the answers to its imports uses no slot of them: neither those of
// other tenants, nor its own. Before, it could keep one of two slots for more than five minutes.
func TestUnreadImportsUseNoSlots(t *testing.T) {
	s := newCheckStack(t)
	ask, _ := slowClients(t, s)
	for range maxImports + 1 {
		require.Equal(t, 200, ask(s.key, http.MethodPost, bulkPath, `{"subject":"unread"}`))
		require.Equal(t, 422, ask(s.key, http.MethodPost, bulkPath, `{"subject":"unread","plan":"none"}`), "an error of the store")
		require.Equal(t, 422, ask(s.key, http.MethodPost, bulkPath, `{"subject":"unread","state":"none"}`), "an error of a line")
		require.Equal(t, 400, ask(s.key, http.MethodPost, bulkPath, `{`))
		require.Equal(t, 200, ask(s.other, http.MethodPost, bulkPath, `{"subject":"unread"}`))
	}
}

// The lines of an import are freed when its answer begins, because then it has no slot that bounds
// them.
func TestUnreadImportsKeepNoLines(t *testing.T) {
	q := &request{ResponseWriter: httptest.NewRecorder(), capacity: newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(1), places.NewProcessors(2))}
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), requestKey{}, q), http.MethodPost, bulkPath, strings.NewReader("subject\nada\n"))
	ended := false
	q.untilAnswer(func() { ended = true })
	a := &admin{api: humachi.New(chi.NewMux(), huma.DefaultConfig("test", "1"))}
	ctx, _, p := a.readImport(r, csvType, newSlots(1, time.Now))
	require.Nil(t, p)
	file := ctx.Value(importKey{}).(*importFile)
	require.Len(t, file.lines, 1)
	q.WriteHeader(http.StatusEarlyHints)
	require.Len(t, file.lines, 1, "no answer yet")
	require.False(t, ended)
	q.WriteHeader(http.StatusOK)
	require.Empty(t, file.lines)
	require.True(t, ended)
}
