package api

import (
	"encoding/csv"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/usage"
)

// usageOf writes usage of tenant A in a past hour, and returns the start of the hour.
func (s *adminStack) usageOf(resources ...string) time.Time {
	s.t.Helper()
	start := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	batch := &usage.Batch{Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: time.Now().UTC().Truncate(time.Millisecond)}
	key := usage.Key{Tenant: s.a.TenantID(), StartMS: start.UnixMilli()}
	var subjects usage.SubjectList
	for i, resource := range resources {
		n := int64(i + 1)
		counts := usage.Counts{Allowed: n, Denied: 2 * n, ShadowDenied: 1, CostAllowed: 10 * n, CostDenied: 20 * n}
		key.Resource, key.Plan = resource, "free"
		for _, key.Rule = range []string{"", "api"} {
			batch.Rows = append(batch.Rows, usage.Row{Key: key, Counts: counts})
		}
		subjects = append(subjects, usage.Subject{Subject: resource, Error: n, Counts: counts})
	}
	batch.Subjects = []usage.Subjects{{Tenant: key.Tenant, StartMS: key.StartMS, TopSubjects: usage.TopSubjects{Checks: subjects}}}
	require.NoError(s.t, s.store.WriteUsage(s.t.Context(), batch))
	return start
}

func (s *adminStack) usage(key, query string, headers ...header) answer {
	s.t.Helper()
	return s.call(key, http.MethodGet, "/v1/usage?"+query, nil, headers...)
}

func items(a answer) (out []map[string]any) {
	for _, item := range a.ok(200).json()["items"].([]any) {
		out = append(out, item.(map[string]any))
	}
	return out
}

// Usage has sums, grouped as requested, with the period and the time until which it is complete.
func TestUsage(t *testing.T) {
	s := newAdminStack(t)
	start := s.usageOf("orders", "carts", "")
	at := start.Format(time.RFC3339)

	a := s.usage(s.readKey, "")
	require.Equal(t, []map[string]any{{
		"start": at, "allowed": 6.0, "denied": 12.0, "shadow_denied": 3.0, "degraded": 0.0, "cost_allowed": 60.0, "cost_denied": 120.0,
	}}, items(a))
	report := a.json()
	require.Equal(t, "hour", report["grain"])
	require.Equal(t, false, report["approximate"])
	until, err := time.Parse(time.RFC3339, report["complete_until"].(string))
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), until, time.Minute)

	require.Equal(t, []map[string]any{
		{"start": at, "rule": "api", "resource": "", "allowed": 3.0, "denied": 6.0, "shadow_denied": 1.0, "degraded": 0.0, "cost_allowed": 30.0, "cost_denied": 60.0},
		{"start": at, "rule": "api", "resource": "carts", "allowed": 2.0, "denied": 4.0, "shadow_denied": 1.0, "degraded": 0.0, "cost_allowed": 20.0, "cost_denied": 40.0},
		{"start": at, "rule": "api", "resource": "orders", "allowed": 1.0, "denied": 2.0, "shadow_denied": 1.0, "degraded": 0.0, "cost_allowed": 10.0, "cost_denied": 20.0},
	}, items(s.usage(s.readKey, "group_by=rule,resource")))
	require.Len(t, items(s.usage(s.readKey, "grain=minute&resource=carts&from="+at)), 1)
	require.Empty(t, items(s.usage(s.readKey, "grain=day&plan=pro")))
	offset := url.QueryEscape(start.In(time.FixedZone("", 7200)).Format(time.RFC3339))
	require.Len(t, items(s.usage(s.readKey, "from="+offset)), 1)
	require.Empty(t, items(s.usage(s.readKey, "to="+offset)))

	subjects := s.usage(s.readKey, "group_by=subject&grain=day&from="+start.Truncate(24*time.Hour).Format(time.RFC3339))
	require.Equal(t, true, subjects.json()["approximate"])
	require.Equal(t, []any{"", "carts", "orders"}, []any{items(subjects)[0]["subject"], items(subjects)[1]["subject"], items(subjects)[2]["subject"]})
	require.EqualValues(t, 3, items(subjects)[0]["error_bound"])
	require.Len(t, items(s.usage(s.readKey, "subject=carts")), 1)
	require.Empty(t, items(s.usage(s.readKey, "subject=carts&top=denied")))

	for _, grain := range []string{"minute", "hour", "day"} {
		require.Empty(t, items(s.usage(s.other, "group_by=subject&grain="+grain)), "another tenant's")
		require.Empty(t, items(s.usage(s.other, "group_by=resource&grain="+grain)), "another tenant's")
	}
}

// Errors name the parameter.
func TestUsageInvalid(t *testing.T) {
	s := newAdminStack(t)
	for query, want := range map[string]string{
		"grain=second":                           "query:grain",
		"grain=minute&from=2020-01-01T00:00:00Z": "query:from",
		"from=yesterday":                         "query:from",
		"from=2026-02-30T00:00:00Z":              "query:from",
		"to=9999-01-01T00:00:00Z&from=" + time.Now().UTC().Format(time.RFC3339): "query:to",
		"grain=day&to=1990-01-01T00:00:00Z":                                     "query:from",
		"group_by=subject,rule":                                                 "query:group_by",
		"group_by=rule,rule":                                                    "query:group_by",
		"group_by=subject&resource=orders":                                      "query:resource",
		"top=denied":                                                            "query:top",
		"format=xml":                                                            "query:format",
		"group_by=subject&grain=hour&from=0001-01-01T00:00:00Z":                 "query:from",
	} {
		require.Equal(t, []string{want}, s.usage(s.readKey, query).pointers(http.StatusUnprocessableEntity, codeInvalidRequest), query)
	}
	s.usage(s.readKey, "limit=5").problem(http.StatusBadRequest, codeUnknownParameter)
	s.usage(s.wKey, "").problem(http.StatusForbidden, codeInsufficientScope)
	s.usage("", "").problem(http.StatusUnauthorized, codeMissingKey)
}

// The table has the same data as the JSON, and no cell that a spreadsheet would execute.
func TestUsageCSV(t *testing.T) {
	s := newAdminStack(t)
	nasty := []string{`=HYPERLINK("http://x","y")`, "+1", "-1", "@SUM(A1)", "plain", `quote " and, comma`, "über"}
	start := s.usageOf(nasty...)
	for _, accept := range []header{{"Accept", "text/csv"}, {"Accept", "application/json;q=0.5, text/csv"}} {
		a := s.usage(s.readKey, "group_by=resource,plan", accept).ok(200)
		require.Equal(t, "text/csv; charset=utf-8", a.header.Get("Content-Type"))
		require.Equal(t, `attachment; filename="usage-hour.csv"`, a.header.Get("Content-Disposition"))
		_, err := time.Parse(time.RFC3339, a.header.Get(completeUntilHeader))
		require.NoError(t, err)
		rows, err := csv.NewReader(strings.NewReader(string(a.body))).ReadAll()
		require.NoError(t, err)
		require.Equal(t, []string{"start", "plan", "resource", "allowed", "denied", "shadow_denied", "degraded", "cost_allowed", "cost_denied"}, rows[0])
		require.Len(t, rows, 1+len(nasty))
		seen := map[string][]string{}
		for _, row := range rows[1:] {
			require.NotContains(t, "=+-@", row[2][:1])
			seen[strings.TrimPrefix(row[2], "'")] = row
		}
		for i, resource := range nasty {
			require.Contains(t, seen, resource)
			require.Equal(t, []string{start.Format(time.RFC3339), "free"}, seen[resource][:2])
			require.Equal(t, itoa(int64(i+1)), seen[resource][3])
		}
	}
	// Subjects too. A table without rows still has its header.
	bySubject := s.usage(s.readKey, "group_by=subject&format=csv", header{"Accept", "application/json"}).ok(200)
	require.Contains(t, string(bySubject.body), ",'@SUM(A1),4,4,8,")
	none := s.usage(s.other, "group_by=subject&format=csv").ok(200)
	require.Equal(t, "start,subject,error_bound,allowed,denied,shadow_denied,degraded,cost_allowed,cost_denied\r\n", string(none.body))
	require.Equal(t, jsonType, s.usage(s.readKey, "format=json", header{"Accept", "text/csv"}).ok(200).header.Get("Content-Type"))
	require.Equal(t, jsonType, s.usage(s.readKey, "", header{"Accept", "*/*"}).ok(200).header.Get("Content-Type"))
}

// With a key that may only check, or while Postgres is unavailable, usage returns a problem.
func TestUsageUnavailable(t *testing.T) {
	s := newAdminStack(t)
	s.usage(s.checkKey, "").problem(http.StatusForbidden, codeInsufficientScope)
	a := s.withoutDatabase().usage(s.readKey, "format=csv")
	a.problem(http.StatusServiceUnavailable, codeConfigurationStoreAway)
	require.NotEmpty(t, a.header.Get("Retry-After"))
}
