package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// imports returns an instance with one turn for long work, for which a piece waits up to wait, and
// a function that reads an import and returns its number of lines.
func imports(t *testing.T, wait time.Duration) (c *capacity, read func(mediaType string, body io.Reader) int) {
	ctx, q := encodingRequest(t, tenants.AsSystem(uuid.UUID{1}, "test"))
	q.capacity.bodies.piece = wait
	a := &admin{api: humachi.New(chi.NewMux(), huma.DefaultConfig("test", "1"))}
	return q.capacity, func(mediaType string, body io.Reader) int {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, bulkPath, body)
		ctx, _, p := a.readImport(r, mediaType, newSlots(1, time.Now))
		require.Nil(t, p)
		return len(ctx.Value(importKey{}).(*importFile).lines)
	}
}

// freeLong reports whether the only turn for long work is free.
func freeLong(t *testing.T, c *capacity) bool {
	leave, err := c.bodies.large.TakeWithin(t.Context(), limit.TenantID{9}, 0)
	if err == nil {
		leave()
	}
	return err == nil
}

// An import is decoded in turns. Before, one with 20 MB had a processor for 15 seconds, and so had
// as many as there are slots, whatever the number of processors.
func TestImportsTakeTurns(t *testing.T) {
	t.Parallel()
	c, read := imports(t, time.Hour)
	leave, err := c.bodies.large.Take(t.Context(), limit.TenantID{2})
	require.NoError(t, err)
	lines := make(chan int, 1)
	go func() { lines <- read(jsonLinesType, strings.NewReader(`{"subject":"ada"}`)) }()
	for c.bodies.large.Waiting() == 0 {
		runtime.Gosched()
	}
	require.Empty(t, lines, "it waits for its turn")
	leave()
	require.Equal(t, 1, <-lines)
	require.True(t, freeLong(t, c), "the turn ends with the body")
}

// watchedBody calls a function whenever an import waits for its client.
type watchedBody struct {
	io.Reader
	waiting func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	b.waiting()
	return b.Reader.Read(p[:min(len(p), importPiece/4)])
}

// An import has no turn while it waits for its client, also in the middle of a line.
func TestImportsWaitForClientsWithoutATurn(t *testing.T) {
	t.Parallel()
	c, read := imports(t, time.Hour)
	const many = 5000
	long := `{"subject":"long","billing_ref":null` + strings.Repeat(" ", 3*importPiece) + "}\n"
	for mediaType, body := range map[string]string{
		jsonLinesType: strings.Repeat(`{"subject":"ada","plan":"pro"}`+"\n", many-1) + long,
		csvType:       "subject,plan\n" + strings.Repeat("ada,"+strings.Repeat("p", 40)+"\n", many),
	} {
		waits := 0
		lines := read(mediaType, &watchedBody{strings.NewReader(body), func() {
			waits++
			require.True(t, freeLong(t, c))
		}})
		require.Equal(t, many, lines, mediaType)
		require.Greater(t, waits, len(body)/importPiece, mediaType)
	}
}

// An import that has begun continues while others have all turns.
func TestImportsContinueWithoutATurn(t *testing.T) {
	t.Parallel()
	c, read := imports(t, 0)
	leave, err := c.bodies.large.Take(t.Context(), limit.TenantID{2})
	require.NoError(t, err)
	defer leave()
	require.Equal(t, 1, read(csvType, strings.NewReader("subject\nada\n")))
}

// patientBody is a body whose reader waits for the client for a second, each time.
type patientBody struct{}

func (patientBody) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return len(p), nil
}

// The time in which lines are decoded, or wait for their turn, is not that of the client.
func TestImportsCountTheTimeOfTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := pacedBody{
			body: patientBody{}, deadlines: deadlines{http.NewResponseController(httptest.NewRecorder())}, left: maxImportBody,
			wanted: func() bool { return false },
		}
		for range 8 {
			_, err := b.Read(make([]byte, 1))
			require.NoError(t, err)
			time.Sleep(importReadTimeout)
		}
		require.Equal(t, 8*time.Second, b.spent)
		require.InDelta(t, (importGrace - 8*time.Second).Seconds(), b.patience().Seconds(), 0.01)
	})
}

// members returns an object with so many members.
func members(n int, value string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"%d":%s`, i, value)
	}
	return "{" + strings.TrimPrefix(b.String(), ",") + "}"
}

// A line with more overrides or labels than a subject can have is refused before they are decoded.
// Before, one with 130 000 took more than a second, and each of them was an error.
func TestImportsBoundTheMembersOfALine(t *testing.T) {
	t.Parallel()
	a := &admin{api: humachi.New(chi.NewMux(), huma.DefaultConfig("test", "1"))}
	f := &importFile{registry: a.api.OpenAPI().Components.Schemas}
	require.NoError(t, f.readLines(strings.NewReader(strings.Join([]string{
		`{"subject":"most","labels":` + members(tenants.MaxLabels, `"v"`) + `,"overrides":` + members(limit.MaxRules, `{"limit":1}`) + `}`,
		`{"subject":"both","overrides":` + members(limit.MaxRules+1, "{}") + `,"labels":` + members(tenants.MaxLabels+1, "1") + `}`,
		`{"subject":"labels","labels":` + members(100_000, "1") + `}`,
		`{"subject":"none","overrides":null,"labels":` + strings.Repeat(" ", smallDocument) + `{}}`,
		`{"subject":"other","overrides":[` + strings.Repeat(" ", smallDocument) + `]}`,
	}, "\n"))))
	var wrong []string
	for _, e := range f.wrong.Lines {
		wrong = append(wrong, fmt.Sprint(e.Line, " ", e.Field, " ", e.Message))
	}
	require.Equal(t, []string{
		"2 overrides may be at most 1000", "2 labels may be at most 32", "3 labels may be at most 32", "5 /overrides must be an object",
	}, wrong)
	require.Len(t, f.lines, 2)
	require.Len(t, f.lines[0].Overrides, limit.MaxRules)
}

// Lines count that are not valid, too. Before, 64 MiB of them took two minutes.
func TestImportsBoundInvalidLines(t *testing.T) {
	t.Parallel()
	a := &admin{api: humachi.New(chi.NewMux(), huma.DefaultConfig("test", "1"))}
	f := &importFile{registry: a.api.OpenAPI().Components.Schemas, seen: maxImportLines - 1}
	require.NoError(t, f.readLines(strings.NewReader("\n{}\n")), "the last one that fits")
	require.ErrorContains(t, f.readLines(strings.NewReader("{}\n")), "at most 200000 lines")
}
