package api

import (
	"context"
	"encoding/csv"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// metered writes metered usage of both tenants in the last three hours, of which the first two are
// sealed. It returns the first hour.
func (s *adminStack) metered() time.Time {
	s.t.Helper()
	start := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	set := func(until time.Time) {
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "UPDATE metering_state SET sealed_until = $1", until)
			require.NoError(s.t, err)
		})
	}
	set(start)
	batch := &usage.MeterBatch{Writer: uuid.New(), Sequence: 1, CompleteUntil: time.Now()}
	for hour := range 3 {
		for _, subject := range []string{"ada", "b/b", "carl"} {
			batch.Rows = append(batch.Rows, usage.MeterRow{
				MeterKey: usage.MeterKey{Tenant: s.a.TenantID(), StartMS: start.Add(time.Duration(hour) * time.Hour).UnixMilli(), Subject: subject, Rule: "api"},
				Metered:  usage.Metered{Units: 10, Overage: 2, Checks: 5},
			})
		}
	}
	other := batch.Rows[0]
	other.Tenant = s.b.TenantID()
	batch.Rows = append(batch.Rows, other)
	require.NoError(s.t, s.store.WriteMetered(s.t.Context(), batch))
	set(start.Add(2 * time.Hour))
	return start
}

// Metered usage is exact, in pages and as files, and of the own tenant only.
func TestMeteredUsage(t *testing.T) {
	s := newAdminStack(t)
	start := s.metered()
	from := "from=" + start.Format(time.RFC3339)
	get := func(key, query string) answer { return s.call(key, http.MethodGet, "/v1/usage/metered?"+query, nil) }

	a := get(s.readKey, from+"&limit=4").ok(200)
	page := a.json()
	require.Equal(t, start.Add(2*time.Hour).Format(time.RFC3339), page["sealed_until"])
	require.Equal(t, page["sealed_until"], a.header.Get("Weir-Sealed-Until"))
	require.Equal(t, page["sealed_until"], page["to"], "only sealed hours")
	require.Empty(t, page["gaps"])
	require.Equal(t, []any{map[string]any{
		"rule": "api", "units": 60.0, "overage_units": 12.0, "checks": 30.0, "late_units": 0.0, "unattributed_units": 0.0,
		"billed_units": 0.0, "free_units": 0.0,
	}}, page["totals"])
	require.Equal(t, map[string]any{
		"start": start.Format(time.RFC3339), "subject": "ada", "rule": "api", "units": 10.0, "overage_units": 2.0, "checks": 5.0, "late_units": 0.0,
		"billed_units": 0.0, "free_units": 0.0,
	}, items(a)[0])
	require.Len(t, items(a), 4)
	next := get(s.readKey, from+"&limit=4&cursor="+page["next_cursor"].(string))
	require.Len(t, items(next), 2)
	require.Nil(t, next.json()["next_cursor"])
	one := get(s.readKey, from+"&open=true&subject=ada").ok(200).json()
	require.Equal(t, []any{map[string]any{
		"rule": "api", "units": 30.0, "overage_units": 6.0, "checks": 15.0, "late_units": 0.0, "unattributed_units": 0.0,
		"billed_units": 0.0, "free_units": 0.0,
	}}, one["totals"], "of one subject, with the open hours")
	require.Equal(t, 90.0, get(s.readKey, from+"&open=true").ok(200).json()["totals"].([]any)[0].(obj)["units"])
	for _, path := range []string{"/v1/usage/metered?", "/v1/usage/metered?format=csv&", "/v1/billing/pushes?", "/v1/overrides?"} {
		unknown := s.call(s.readKey, http.MethodGet, path+"rule=unknown", nil)
		require.Equal(t, []string{"query:rule"}, unknown.pointers(422, codeInvalidRequest), path)
		s.call(s.readKey, http.MethodGet, path+"rule=api", nil).ok(200) // the rule was deleted, its usage is kept
	}
	get(s.readKey, from+"&limit=4&rule=api&cursor="+page["next_cursor"].(string)).problem(http.StatusBadRequest, codeInvalidCursor)
	get(s.other, from+"&limit=4&cursor="+page["next_cursor"].(string)).problem(http.StatusBadRequest, codeInvalidCursor)

	sum := items(get(s.readKey, from+"&grain=period&open=true&subject=b%2Fb"))
	require.Equal(t, []map[string]any{{"subject": "b/b", "rule": "api", "units": 30.0, "overage_units": 6.0, "checks": 15.0, "late_units": 0.0, "billed_units": 0.0, "free_units": 0.0}}, sum)

	table := get(s.readKey, from+"&format=csv").ok(200)
	require.Equal(t, "text/csv; charset=utf-8", table.header.Get("Content-Type"))
	rows, err := csv.NewReader(strings.NewReader(string(table.body))).ReadAll()
	require.NoError(t, err)
	require.Len(t, rows, 1+6)
	require.Equal(t, string(table.body), string(get(s.readKey, from+"&format=csv").body), "the same file at every time")
	lines := get(s.readKey, from+"&format=jsonl&grain=period").ok(200)
	require.Equal(t, jsonLinesType, lines.header.Get("Content-Type"))
	require.Equal(t, 3+1, strings.Count(string(lines.body), "\n"))
	require.Contains(t, string(lines.body), `"type":"end"`)

	require.Len(t, items(get(s.other, from)), 1)
	require.Equal(t, 1+1, strings.Count(string(get(s.other, from+"&format=jsonl").body), "\n"))
	get(s.wKey, from).problem(http.StatusForbidden, codeInsufficientScope)
	get("", from).problem(http.StatusUnauthorized, codeMissingKey)
	for query, want := range map[string]string{
		"from=2026-01-31T12:30:00Z":           "query:from",
		"from=yesterday":                      "query:from",
		"to=1990-01-01T00:00:00Z":             "query:from",
		"rule=No+Rule":                        "query:rule",
		"subject=" + strings.Repeat("a", 257): "query:subject",
		"grain=minute":                        "query:grain",
		"format=xml":                          "query:format",
		"format=csv&limit=5":                  "query:limit",
	} {
		require.Equal(t, []string{want}, get(s.readKey, query).pointers(http.StatusUnprocessableEntity, codeInvalidRequest), query)
	}
}

// An export that has sent all items also sends its end, although its client was slow and another
// tenant waits.
func TestEndOfASlowMeteredExport(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	all := tenants.NewExportPlaces(1, 1, func() time.Time { return now })
	place, err := all.Take(uuid.New())
	require.NoError(t, err)
	w := &slowRecorder{httptest.NewRecorder(), func() { now = now.Add(12 * time.Second) }}
	e := &meteredExport{w: w, deadlines: deadlines{http.NewResponseController(w)}, pace: place.Pace(w), format: "jsonl"}
	require.NoError(t, e.begin(tenants.MeteredReport{}))
	for range 3 {
		_, err = all.Take(uuid.New())
		require.Error(t, err)
		require.NoError(t, e.items([]tenants.MeteredItem{{Subject: "ada", Rule: "r", Units: 1}}))
	}
	require.Error(t, e.items(nil))
	require.NoError(t, e.end())
	require.Contains(t, w.Body.String(), `"type":"end"`)
}

// slowRecorder is a client that takes some time to read each piece.
type slowRecorder struct {
	*httptest.ResponseRecorder
	wait func()
}

func (w *slowRecorder) Write(b []byte) (int, error) {
	w.wait()
	return w.ResponseRecorder.Write(b)
}
