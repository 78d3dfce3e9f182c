package api

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// openUnread opens n streams with a request each, and permits no byte of an answer's body. It
// returns when the heads of all answers have arrived, with the number of those with each status.
// The bodies stay unread until the test ends.
func openUnread(t *testing.T, url string, trust *tls.Config, n int, method, path, body string, fields ...string) map[string]int {
	t.Helper()
	config := trust.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(conn, conn)
	require.NoError(t, framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
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

// Answers that a tenant does not read count for the tenant, and for nobody else.
func TestUnreadBatchesCountForTheTenant(t *testing.T) {
	s := newCheckStack(t)
	const n, bound = 60, 50
	url, trust := s.secureServer(bound)
	batch := `{"checks":[` + strings.Repeat(`{"subject":"unread"},`, 19) + `{"subject":"unread"}]}`
	fields := []string{"authorization", "Bearer " + s.key, "content-type", "application/json"}
	statuses := openUnread(t, url, trust, n, http.MethodPost, "/v1/check/batch", batch, fields...)
	require.Positive(t, statuses["200"])
	require.Positive(t, statuses["503"], "of more than its share")
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

// A tenant has 32 MiB of long answers that it does not read. Before, it could have 64 answers of
// any size: pages of 9 MiB took 655 MiB, and configurations in YAML 1183 MiB.
func TestUnreadAnswersAreBoundedByBytes(t *testing.T) {
	s := newCheckStack(t)
	url, trust := s.secureServer(1000)
	addLongSubjects(t, s, 200)
	const n, size = 40, 200 * 31 * 256 // the page is a little longer
	unread := func(key, path string, n int) map[string]int {
		return openUnread(t, url, trust, n, http.MethodGet, path, "", "authorization", "Bearer "+key)
	}
	statuses := unread(s.key, "/v1/subjects?limit=200", n)
	require.Positive(t, statuses["200"])
	require.LessOrEqual(t, statuses["200"]*size, maxTenantUnread)
	require.Equal(t, n, statuses["200"]+statuses["503"])
	require.Equal(t, map[string]int{"503": 1}, unread(s.key, "/v1/subjects?limit=200", 1), "it has its share")
	require.Equal(t, map[string]int{"200": 1}, unread(s.key, "/v1/subjects?limit=1", 1), "short answers do not count")
	require.Equal(t, map[string]int{"200": 1}, unread(s.other, "/v1/subjects?limit=200", 1))

	// The long answer about a change counts, but is never refused: the change was made.
	put := func(path string) map[string]int {
		return openUnread(t, url, trust, 1, http.MethodPut, path, `{"subjects":[]}`, "authorization", "Bearer "+s.key, "content-type", jsonType)
	}
	require.Equal(t, map[string]int{"503": 1}, put("/v1/config?prune=true&dry_run=true"))
	require.Equal(t, map[string]int{"200": 1}, put("/v1/config?prune=true"))
	require.Equal(t, 200, checkAs(t, url, trust, s.key))
}

// Exports and configurations with subjects have places until they are sent, two of each for a
// tenant. Before, an unread export kept 1000 rows of any size, and a tenant could have 64 of them.
func TestUnreadDownloads(t *testing.T) {
	for _, path := range []string{
		"/v1/audit?format=jsonl", "/v1/audit?format=csv", "/v1/config?subjects=true", "/v1/config?subjects=true&format=yaml",
	} {
		t.Run(path, func(t *testing.T) {
			s := newCheckStack(t)
			url, trust := s.secureServer(1000)
			addLongSubjects(t, s, 20) // longer than what net/http buffers
			unread := func(key string, n int) map[string]int {
				return openUnread(t, url, trust, n, http.MethodGet, path, "", "authorization", "Bearer "+key)
			}
			require.Equal(t, map[string]int{"200": maxTenantExports, "503": 4}, unread(s.key, maxTenantExports+4))
			require.Equal(t, map[string]int{"200": 1}, unread(s.other, 1))
		})
	}
}
