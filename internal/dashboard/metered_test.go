package dashboard

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/usage"
)

// The page shows the numbers of the invoice by subject, what may be missing and what was sent. Its
// file has the sealed hours. Another tenant sees none of it.
func TestMeteredPage(t *testing.T) {
	s := newStack(t)
	ann, bob := s.as("ann@example.com"), s.as("bob@example.com")
	require.Contains(t, ann.get("/metered").body, "No rule is metered")

	rule := limit.NewRule("api")
	rule.Limit, rule.Metering, rule.MeterEvent = 100, limit.MeterOverage, "api_requests"
	rule.Window, _ = limit.ParseWindow("1m")
	_, err := s.store.CreateRule(t.Context(), s.a, rule)
	require.NoError(t, err)
	require.Contains(t, ann.get("/metered").body, "Nothing sent yet")

	hour := s.clock.Now().UTC().Truncate(time.Hour)
	s.db.Exec("UPDATE metering_state SET sealed_until = $1", hour)
	row := usage.MeterRow{
		MeterKey: usage.MeterKey{Tenant: s.a.TenantID(), StartMS: hour.UnixMilli(), Subject: "ada <b>", Rule: "api"},
		Metered:  usage.Metered{Units: 12_345, Overage: 2_345, Checks: 7},
	}
	other := row
	other.Subject = "bob"
	require.NoError(t, s.store.WriteMetered(t.Context(), &usage.MeterBatch{Writer: uuid.New(), Sequence: 1, Rows: []usage.MeterRow{row, other}}))
	s.db.Exec("UPDATE metering_state SET sealed_until = $1", hour.Add(time.Hour))
	s.db.Exec("INSERT INTO metering_gaps (writer, from_at, to_at) VALUES (gen_random_uuid(), $1, $1)", hour.Add(time.Second))
	s.db.Exec("INSERT INTO metered_pushes (tenant_id, id, start, rule, meter_event, kind, why) VALUES ($1, gen_random_uuid(), $2, 'api', 'api_requests', 'overage', 'the provider cannot be reached')",
		s.a.TenantID(), hour)

	got := ann.get("/metered").body
	for _, words := range []string{"<b>2,345</b>", "<b>4,690</b>", "24,690", "ada &lt;b&gt;", "may be missing: an instance has not written them, or Postgres has lost them.", "retrying", "the provider cannot be reached"} {
		require.Contains(t, got, words)
	}
	got = ann.get("/metered?q=ada&rule=api").body
	require.Contains(t, got, "ada &lt;b&gt;")
	require.NotContains(t, got, "/subjects/bob")
	require.Equal(t, http.StatusBadRequest, ann.get("/metered?month=May").status)
	for _, format := range []string{"csv", "jsonl"} {
		file := ann.get("/metered/export?format=" + format)
		require.Contains(t, file.header.Get("Content-Disposition"), "metered-"+hour.Format("2006-01")+"."+format)
		require.Contains(t, file.body, "ada <b>")
		require.NotContains(t, bob.get("/metered/export?format="+format).body, "ada")
	}
	require.NotContains(t, bob.get("/metered").body, "ada &lt;b&gt;")
}
