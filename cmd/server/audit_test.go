package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// loggedHeads returns the tenants whose heads were logged, and the last line.
func loggedHeads(t *testing.T, d *tenantstest.Database, since, now time.Time, hours int) (of []string, last map[string]any) {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, logHeadsSince(t.Context(), d.Store, slog.New(slog.NewJSONHandler(&out, nil)), since, now, hours))
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		last = map[string]any{}
		require.NoError(t, json.Unmarshal([]byte(line), &last))
		if last["msg"] == "audit head" {
			of = append(of, last["tenant_id"].(string))
		}
	}
	require.Equal(t, "audit heads", last["msg"])
	return of, last
}

// Of many trails, only the heads of those with new rows are logged, and a digest of all. Before, a
// server with a million tenants wrote a million lines every hour.
func TestLoggedAuditHeads(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	b, _ := d.Tenant("tenant-b")
	d.Exec("UPDATE audit SET at = now() - interval '2 days' WHERE tenant_id = $1", b.TenantID())
	since := time.Now().Add(-time.Hour)
	at := func(hour int) time.Time { return time.Date(2030, 1, 1, hour, 0, 0, 0, time.UTC) }
	few, _ := loggedHeads(t, d, since, at(7), 1)
	require.ElementsMatch(t, []string{a.TenantID().String(), b.TenantID().String()}, few, "all of a few")

	// The last byte of these ids is 30, so they are logged at 6 o'clock in any case.
	d.Exec(`INSERT INTO tenants (id, slug, version, policy_version, subjects_version, keys_version)
		SELECT overlay(md5('t' || n) placing '1e' from 31)::uuid, 'many-' || n, 1, 1, 1, 1 FROM generate_series(1, $1::int) n`, allHeads)
	d.Exec("INSERT INTO audit_heads (tenant_id, sequence, hash) SELECT id, 5, sha256(slug::bytea) FROM tenants WHERE slug LIKE 'many-%'")
	hour := (int(b.TenantID()[15]) + 1) % 24 // not that of tenant-b
	if hour == 30%24 {
		hour++
	}
	many, last := loggedHeads(t, d, since, at(hour), 1)
	require.Equal(t, []string{a.TenantID().String()}, many, "a head without a row was written long ago")
	require.EqualValues(t, 1, last["logged"])
	part, _ := loggedHeads(t, d, since, at(30%24), 1)
	require.Greater(t, len(part), allHeads, "every head is logged once a day")
	part, _ = loggedHeads(t, d, since, at(30%24+2), 2)
	require.Less(t, len(part), allHeads)
	part, _ = loggedHeads(t, d, since, at(30%24+2), 3)
	require.Greater(t, len(part), allHeads, "after two hours that failed")

	all, heads := sha256.New(), 0
	require.NoError(t, d.Store.AuditHeads(t.Context(), func(h tenants.AuditHead) {
		heads++
		all.Write([]byte(headLine(h)))
	}))
	require.EqualValues(t, heads, last["trails"])
	require.Equal(t, hex.EncodeToString(all.Sum(nil)), last["digest"])
	d.Exec("UPDATE audit_heads SET hash = sha256('another trail') WHERE tenant_id = $1", b.TenantID())
	_, changed := loggedHeads(t, d, since, at(hour), 1)
	require.NotEqual(t, last["digest"], changed["digest"])
}
