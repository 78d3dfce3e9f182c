package tenants_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// largeLines are subjects whose rows of the trail are several kilobytes each.
func largeLines(n int, value string) (lines []tenants.SubjectLine) {
	labels := map[string]string{}
	for i := range 10 {
		labels[fmt.Sprintf("label-%d", i)] = strings.Repeat(value, 200)
	}
	for i := range n {
		lines = append(lines, tenants.SubjectLine{Line: i + 1, Subject: fmt.Sprintf("subject-%02d", i), Labels: tenants.PackLabels(labels)})
	}
	return lines
}

// volumeOf returns the number of rows of a trail, and the bytes of their fields.
func volumeOf(t *testing.T, s *tenants.Store, a tenants.Actor) (rows, size int) {
	t.Helper()
	for after := ""; ; {
		page, next, err := s.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{Limit: 200, After: after})
		require.NoError(t, err)
		for i := range page {
			size += len(page[i].Before) + len(page[i].After)
		}
		rows += len(page)
		if after = next; next == "" {
			return rows, size
		}
	}
}

// A tenant that imports two states in turn writes a row for each change, as always. Beyond a
// quarter of the bytes of a day, large rows have digests, and beyond all of them, changes are
// refused until the day ends. Other tenants are not affected, and the trail stays a chain.
func TestTrailOfADay(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC)
	const most = 1_000_000
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { return at }, AuditDay: most})
	s, ctx := d.Store, t.Context()
	_, key := d.Tenant("tenant-a")
	_, otherKey := d.Tenant("tenant-b")
	a, other := d.Actor(key), d.Actor(otherKey)
	const subjects = 20
	states := [][]tenants.SubjectLine{largeLines(subjects, "a"), largeLines(subjects, "b")}
	at = at.AddDate(1, 0, 0) // once, a server's clock was ahead
	require.NoError(t, second(s.CreateRule(ctx, a, rule("ahead"))))
	at = at.AddDate(-1, 0, 0)
	first, _ := volumeOf(t, s, a)

	imports := 0
	var often *tenants.TooOftenError
	for ; ; imports++ {
		require.Less(t, imports, 200, "imports without end")
		_, err := s.ImportSubjects(ctx, a, states[imports%2], tenants.ImportMode{})
		if errors.As(err, &often) {
			break
		}
		require.NoError(t, err)
	}
	require.Equal(t, time.Hour, often.RetryAfter)
	require.Contains(t, often.Error(), "audit trail")
	rows, size := volumeOf(t, s, a)
	require.Equal(t, first+imports*(subjects+1), rows, "each change has its row")
	require.Less(t, size, most)
	require.Greater(t, imports, 10)

	// The newest row of a subject has digests, those of the other imports all fields.
	page, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "subject", Target: "subject-00"}, tenants.Page{Limit: 200})
	require.NoError(t, err)
	require.Len(t, page, imports)
	require.True(t, page[0].HasDigests())
	oldest := page[imports-1]
	require.False(t, oldest.HasDigests())
	digest := struct {
		Fields, Bytes int
		SHA256        string
	}{}
	require.NoError(t, json.Unmarshal(page[0].After, &digest))
	same := page[imports-2].After // the second import, which is like each second one
	if imports%2 == 1 {
		same = page[imports-3].After
		require.False(t, page[imports-3].HasDigests())
	}
	sum := sha256.Sum256(same)
	require.Equal(t, hex.EncodeToString(sum[:]), digest.SHA256, "of what the row would have")
	require.Equal(t, []int{1, len(same)}, []int{digest.Fields, digest.Bytes})
	report, err := s.VerifyAudit(ctx, a, tenants.AuditVerification{})
	require.NoError(t, err)
	require.True(t, report.Valid && report.Complete, report)

	// Small changes have a little more. Revoking, rotating and deleting are possible in any case.
	require.NoError(t, second(s.CreateRule(ctx, a, rule("small"))))
	var refused error
	for i := 0; refused == nil; i++ {
		require.Less(t, i, 500)
		refused = second(s.CreateRule(ctx, a, rule(fmt.Sprintf("rule-%d", i))))
	}
	require.ErrorAs(t, refused, &often)
	reset := s.RecordReset(ctx, a, tenants.Reset{Subject: "subject-00"}, func(context.Context) ([]string, error) {
		t.Error("the counters were reset")
		return nil, nil
	})
	require.ErrorAs(t, reset, &often)
	require.NoError(t, s.DeleteSubject(ctx, a, "subject-00", tenants.Match{}))
	_, err = s.ImportSubjects(ctx, other, states[0], tenants.ImportMode{})
	require.NoError(t, err)
	fresh, _, err := s.RotateKey(ctx, a, a.KeyID(), 2*time.Hour)
	require.NoError(t, err)
	require.NoError(t, s.RevokeKey(ctx, a, fresh.ID, tenants.Match{}))

	at = at.Add(time.Hour)
	require.NoError(t, second(s.CreateRule(ctx, a, rule("more"))))
}
