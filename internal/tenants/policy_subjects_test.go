package tenants_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// tenOf registers the subjects s0 to s9. Each has 10 overrides, except s2, which has none.
func tenOf(t *testing.T, d *tenantstest.Database, a tenants.Actor) {
	t.Helper()
	for i := range 10 {
		mustRule(t, d.Store, a, rule(fmt.Sprintf("r%d", i)))
		mustSubject(t, d.Store, a, tenants.Subject{Subject: fmt.Sprintf("s%d", i)})
	}
	d.Exec(`INSERT INTO overrides (tenant_id, subject, rule_id, limit_units, version)
		SELECT $1, s.subject, r.id, 77, 1 FROM subjects s, rules r WHERE s.tenant_id = $1 AND r.tenant_id = $1 AND s.subject <> 's2'`, a.TenantID())
}

// page is what a page has: names, with the number of their overrides, and the state of those that
// are not active.
func page(of *[]string) func(check.SubjectData) {
	*of = nil
	return func(d check.SubjectData) {
		line := fmt.Sprintf("%s:%d", d.Subject, len(d.Overrides))
		switch {
		case d.Deleted:
			line = "deleted " + d.Subject
		case d.State != check.Active:
			line += " " + d.State.String()
		}
		*of = append(*of, line)
	}
}

// A page of subjects ends by their overrides, and has at least one subject. 900 subjects with 1000
// overrides each were one page.
func TestListedPagesEndByOverrides(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	tenOf(t, d, a)
	for _, c := range []struct {
		overrides int
		pages     [][]string
	}{
		{5, [][]string{{"s0:10"}, {"s1:10"}, {"s2:0", "s3:10"}, {"s4:10"}, {"s5:10"}, {"s6:10"}, {"s7:10"}, {"s8:10"}, {"s9:10"}, nil}},
		{25, [][]string{{"s0:10", "s1:10", "s2:0", "s3:10"}, {"s4:10", "s5:10", "s6:10"}, {"s7:10", "s8:10", "s9:10"}, nil}},
		{1000, [][]string{{"s0:10", "s1:10", "s2:0", "s3:10", "s4:10", "s5:10"}, {"s6:10", "s7:10", "s8:10", "s9:10"}}},
	} {
		d.Store.SetLoadedPages(6, c.overrides, 100)
		var pages [][]string
		for after, more := "", true; more; {
			var err error
			var got []string
			add := page(&got)
			_, more, err = d.Store.ListSubjects(t.Context(), a.TenantID(), after, func(d check.SubjectData) { after = d.Subject; add(d) })
			require.NoError(t, err)
			pages = append(pages, got)
		}
		require.Equal(t, c.pages, pages, "%d overrides", c.overrides)
	}
}

// So does a page of changed subjects. What changes between two pages is in a later one, or after
// the version of the first one, whether few or many subjects have changed.
func TestChangedPagesEndByOverrides(t *testing.T) {
	t.Parallel()
	for _, few := range []int{100, 0} {
		d, a, b := two(t)
		s := d.Store
		tenOf(t, d, a)
		mustSubject(t, s, b, tenants.Subject{Subject: "s3"})
		since, err := s.LoadSubjects(t.Context(), a.TenantID(), 0, func(check.SubjectData) {})
		require.NoError(t, err)
		state := func(subject string, state check.SubjectState) {
			_, _, err := s.PutSubject(t.Context(), a, tenants.Subject{Subject: subject, State: state}, tenants.Match{})
			require.NoError(t, err)
		}
		for _, subject := range []string{"s0", "s2", "s3", "s5", "s7", "s8"} {
			state(subject, check.Blocked)
		}
		require.NoError(t, s.DeleteSubject(t.Context(), a, "s1", tenants.Match{}))
		s.SetLoadedPages(9, 15, few)
		var got []string
		first, next, err := s.ChangedSubjects(t.Context(), a.TenantID(), since, "", page(&got))
		require.NoError(t, err)
		require.Equal(t, []string{"deleted s1", "s0:10 blocked", "s2:0 blocked", "s3:10 blocked"}, got)
		require.Equal(t, "s3", next)
		require.Equal(t, versionsOf(t, d, a).subjects, first)

		state("s0", check.Exempt) // whose page has been read
		state("s5", check.Exempt) // whose page has not
		state("s9", check.Blocked)
		require.NoError(t, s.DeleteSubject(t.Context(), a, "s7", tenants.Match{}))
		mustSubject(t, s, a, tenants.Subject{Subject: "s1", State: check.Exempt})
		_, next, err = s.ChangedSubjects(t.Context(), a.TenantID(), since, next, page(&got))
		require.NoError(t, err)
		require.Equal(t, []string{"s5:10 exempt", "s8:10 blocked"}, got)
		_, next, err = s.ChangedSubjects(t.Context(), a.TenantID(), since, next, page(&got))
		require.NoError(t, err)
		require.Equal(t, []string{"s9:10 blocked"}, got)
		require.Empty(t, next)

		var rest []string
		_, err = s.LoadSubjects(t.Context(), a.TenantID(), first, page(&rest))
		require.NoError(t, err)
		require.Equal(t, []string{"deleted s7", "s0:10 exempt", "s1:0 exempt", "s5:10 exempt", "s9:10 blocked"}, rest)
	}
}

// A page of many changes has a part of all subjects, of which maybe none has changed.
func TestChangedPagesPassOthers(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	tenOf(t, d, a)
	since, err := d.Store.LoadSubjects(t.Context(), a.TenantID(), 0, func(check.SubjectData) {})
	require.NoError(t, err)
	_, _, err = d.Store.PutSubject(t.Context(), a, tenants.Subject{Subject: "s8", State: check.Exempt}, tenants.Match{})
	require.NoError(t, err)
	d.Store.SetLoadedPages(4, 100, 0)
	var pages [][]string
	for next, more := "", true; more; more = next != "" {
		var got []string
		_, next, err = d.Store.ChangedSubjects(t.Context(), a.TenantID(), since, next, page(&got))
		require.NoError(t, err)
		pages = append(pages, got)
	}
	require.Equal(t, [][]string{nil, nil, {"s8:10 exempt"}}, pages)
}
