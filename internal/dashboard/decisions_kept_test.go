package dashboard

import (
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// keptPath returns the page of a period of which no decision is kept.
func (s *stack) keptPath(from, to time.Duration) string {
	now := s.clock.Now().UTC()
	return "/decisions?show=all&subject=none&from=" + now.Add(-from).Format(minuteForm) + "&to=" + now.Add(-to).Format(minuteForm)
}

// The usage of a period without decisions is summed up by rule and by subject.
func TestKeptUsage(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	hour := s.clock.Now().UTC().Truncate(time.Hour)
	for _, ago := range []time.Duration{5 * time.Hour, 6 * time.Hour} {
		s.decided(s.a, usage.Hour, ago, "", 1000, 20)
		s.decided(s.a, usage.Hour, ago, "requests", 500, 20)
		s.decided(s.a, usage.Hour, ago, "quiet", 500, 0)
		list := usage.SubjectList{{Subject: "mallory", Counts: usage.Counts{Denied: 8}}, {Subject: "alice", Counts: usage.Counts{Denied: 3}}}
		require.NoError(t, s.store.WriteUsage(t.Context(), &usage.Batch{
			Writer: uuid.New(), ID: uuid.Must(uuid.NewV7()), CompleteUntil: hour,
			Subjects: []usage.Subjects{{Tenant: s.a.TenantID(), StartMS: hour.Add(-ago).UnixMilli(), TopSubjects: usage.TopSubjects{Checks: list, Denied: list}}},
		}))
	}
	b := s.as("ann@example.com")
	got := b.get(s.keptPath(8*time.Hour, time.Hour))
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "In this period: 2,000 allowed, 40 denied.")
	require.Regexp(t, `(?s)Denied by rule.*Rule mark</a></th>\s*<td class="num">40<.*Most denied subjects</caption>.*mallory.*>16<.*alice.*>6<`, got.body)
	require.NotContains(t, got.body, "/rules/quiet", "it denied nothing")
	got = b.get(s.keptPath(20*24*time.Hour, -400*24*time.Hour))
	require.Contains(t, got.body, "In this period: 2,000 allowed, 40 denied.", "until now")
	require.Regexp(t, `(?s)Most denied subjects of these days \(UTC\).*mallory.*>16<`, got.body, "one list for each day")
	require.NotContains(t, b.get(s.keptPath(-time.Hour, -2*time.Hour)).body, "In this period", "it has not begun")
	require.NotContains(t, s.as("bob@example.com").get(s.keptPath(8*time.Hour, time.Hour)).body, "mallory", "another tenant's")
}

// A period with too many rules has a note in place of its sums, and not an error each second.
func TestKeptUsageOfTooManyRules(t *testing.T) {
	s := newStack(t)
	s.db.Exec(`INSERT INTO usage_hours (tenant_id, start, rule, plan, resource, allowed, denied, shadow_denied, degraded, cost_allowed, cost_denied)
		SELECT $1, $2, 'r' || n, '', '', 1, 1, 0, 0, 1, 1 FROM generate_series(1, 50001) AS n`, s.a.TenantID(), s.clock.Now().UTC().Add(-5*time.Hour).Truncate(time.Hour))
	got := s.as("ann@example.com").get(s.keptPath(8*time.Hour, time.Hour))
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "too much usage to sum up")
}

// A live page reads kept usage until it has it, and then seldom. After an error, it does not read
// again on the next tick: before, pages of long periods repeated all reports each second.
func TestLiveKeptUsageIsNotRepeated(t *testing.T) {
	t.Parallel()
	var kept liveKept
	reads, fails := 0, error(nil)
	var has *keptUsage
	tick := func(n int) error {
		return kept.update(n, func() (*keptUsage, error) {
			reads++
			return has, fails
		})
	}
	require.NoError(t, tick(0))
	fails = errors.New("broken")
	require.ErrorIs(t, tick(1), fails)
	for n := 2; n < overviewSlow; n++ {
		require.NoError(t, tick(n), "it is reported once")
		require.True(t, kept.failed)
	}
	require.Equal(t, 2, reads)
	fails, has = nil, &keptUsage{Denied: 7}
	require.NoError(t, tick(overviewSlow))
	require.False(t, kept.failed)
	require.NoError(t, tick(overviewSlow+1))
	require.Equal(t, 3, reads, "it has the usage")
	fails = tenants.ErrTooManyReports
	require.ErrorIs(t, tick(2*overviewSlow), fails)
	require.EqualValues(t, 7, kept.usage.Denied, "of before")
}
