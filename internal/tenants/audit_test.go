package tenants_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func trailIsIntact(t *testing.T, s *tenants.Store, a tenants.Actor) tenants.AuditReport {
	t.Helper()
	report, err := s.VerifyAudit(t.Context(), a, tenants.AuditVerification{})
	require.NoError(t, err)
	return report
}

// trailOf returns the rows of a tenant's trail after the first ones, oldest first.
func trailOf(t *testing.T, s *tenants.Store, a tenants.Actor, after int64) (rows []tenants.AuditEntry) {
	t.Helper()
	page, next, err := s.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{Limit: 1000})
	require.NoError(t, err)
	require.Empty(t, next)
	for i := len(page) - 1; i >= 0; i-- {
		if page[i].Sequence > after {
			rows = append(rows, page[i])
		}
	}
	return rows
}

// The rows of the trail for each kind of write.
func TestAuditTrail(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	_, secret := d.Tenant("tenant-a")
	a, s := d.Actor(secret), d.Store
	ctx := tenants.WithOrigin(t.Context(), tenants.Origin{Address: "192.0.2.7", UserAgent: "agent\x00\xff/1", RequestID: "req-1"})
	seen := trailIsIntact(t, s, a).Rows
	require.EqualValues(t, 2, seen, "the tenant and its first key")
	expiry := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	var key, next tenants.APIKey
	var member tenants.Member
	steps := []struct {
		name           string
		do             func() error
		action, target string // "kind:target"; "": no row
		before, after  string
		reason         string
	}{
		{"a rule", func() error { return second(s.CreateRule(ctx, a, rule("r"))) }, "create", "rule:r", "",
			`{"slug":"r","resource":"*","algorithm":"token_bucket","limit":100,"window":"1m","by":["subject"],"mode":"enforce","on_unavailable":"local","consistency":"strict","metering":"none"}`, ""},
		{"a new limit", func() error {
			return second(s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error { r.Limit, r.Burst = 200, 300; return nil }))
		}, "update", "rule:r", `{"limit":100,"burst":null}`, `{"limit":200,"burst":300}`, ""},
		{"the same again", func() error {
			return second(s.EditRule(ctx, a, "r", tenants.Match{}, func(r *limit.Rule) error { r.Limit = 200; return nil }))
		}, "", "", "", "", ""},
		{"a refused change", func() error {
			require.Error(t, second(s.CreateRule(ctx, a, rule("r"))))
			return nil
		}, "", "", "", "", ""},
		{"a plan with a limit", func() error {
			return second(s.CreatePlan(ctx, a, tenants.Plan{Slug: "free", Limits: map[string]limit.Limit{"r": {Limit: 5}}}))
		}, "create", "plan:free", "", `{"slug":"free","default":true,"limits":{"r":{"limit":5}}}`, ""},
		{"another number", func() error {
			_, _, err := s.PutPlanLimit(ctx, a, "free", "r", limit.Limit{Limit: 6}, tenants.Match{})
			return err
		}, "update", "plan:free", `{"limits":{"r":{"limit":5}}}`, `{"limits":{"r":{"limit":6}}}`, ""},
		{"a subject", func() error {
			_, _, err := s.PutSubject(ctx, a, tenants.Subject{Subject: "=alice", Plan: "free", Labels: map[string]string{"a": "1", "b": "2"}}, tenants.Match{})
			return err
		}, "create", "subject:=alice", "", `{"subject":"=alice","plan":"free","state":"active","labels":{"a":"1","b":"2"}}`, ""},
		{"its label", func() error {
			return second(s.EditSubject(ctx, a, "=alice", tenants.Match{}, func(in *tenants.Subject) error { in.Labels["b"] = "3"; return nil }))
		}, "update", "subject:=alice", `{"labels":{"b":"2"}}`, `{"labels":{"b":"3"}}`, ""},
		{"its override", func() error {
			_, _, err := s.PutOverride(ctx, a, "=alice", tenants.Override{Rule: "r", Limit: limit.Limit{Unlimited: true}, Reason: "a launch", ExpiresAt: &expiry}, tenants.Match{})
			return err
		}, "update", "subject:=alice", `{"overrides":null}`, `{"overrides":{"r":{"unlimited":true,"reason":"a launch","expires_at":"2030-01-02T03:04:05Z"}},"replaced_limits":{"r":6}}`, "a launch"},
		{"a subject by its override", func() error {
			_, _, err := s.PutOverride(ctx, a, "bob", tenants.Override{Rule: "r", Limit: limit.Limit{Limit: 7}}, tenants.Match{})
			return err
		}, "create", "subject:bob", "", `{"subject":"bob","state":"active","overrides":{"r":{"limit":7}},"replaced_limits":{"r":6}}`, ""},
		{"a deleted subject", func() error { return s.DeleteSubject(ctx, a, "bob", tenants.Match{}) }, "delete", "subject:bob",
			`{"subject":"bob","state":"active","overrides":{"r":{"limit":7}}}`, "", ""},
		{"a deleted rule with its limits", func() error { return s.DeleteRule(ctx, a, "r", tenants.Match{}) }, "delete", "rule:r",
			`{"slug":"r","resource":"*","algorithm":"token_bucket","limit":200,"burst":300,"window":"1m","by":["subject"],"mode":"enforce","on_unavailable":"local","consistency":"strict","metering":"none","plan_limits":{"free":{"limit":6}},"overrides":1}`, "", ""},
		{"a key", func() (err error) {
			key, _, err = s.CreateKey(ctx, a, tenants.NewAPIKey{Name: "k", Scopes: []tenants.Scope{tenants.ScopeRead}})
			return err
		}, "create", "key:KEY", "", `{"id":"KEY","name":"k","kind":"key","scopes":["read"],"last4":"LAST"}`, ""},
		{"rotated", func() (err error) {
			next, _, err = s.RotateKey(ctx, a, key.ID, 0)
			return err
		}, "rotate", "key:KEY", `{"expires_at":null,"rotated_to":null,"new_key":null}`,
			`{"expires_at":"EXPIRES","rotated_to":"NEXT","new_key":{"id":"NEXT","name":"k","kind":"key","scopes":["read"],"last4":"4TSAL"}}`, ""},
		{"and revoked", func() error { return s.RevokeKey(ctx, a, next.ID, tenants.Match{}) }, "revoke", "key:NEXT", `{"revoked_at":null}`, `{"revoked_at":"REVOKED"}`, ""},
		{"a member", func() error {
			invited, err := s.InviteMember(ctx, a, "m@example.com", tenants.Viewer)
			member = invited.Member
			return err
		}, "create", "member:m@example.com", "", `{"id":"MEMBER","email":"m@example.com","role":"viewer","joined":false}`, ""},
		{"with another role", func() error {
			return second(s.EditMember(ctx, a, member.ID, tenants.Match{}, func(m *tenants.Member) { m.Role = tenants.Editor }))
		}, "update", "member:m@example.com", `{"role":"viewer"}`, `{"role":"editor"}`, ""},
		{"a removed member", func() error { return s.RemoveMember(ctx, a, member.ID, tenants.Match{}) }, "delete", "member:m@example.com",
			`{"id":"MEMBER","email":"m@example.com","role":"editor","joined":false}`, "", ""},
		{"a name", func() error {
			return second(s.EditTenant(ctx, a, tenants.Match{}, func(in *tenants.Tenant) error { in.Name = "A"; return nil }))
		}, "update", "tenant:tenant-a", `{"name":null}`, `{"name":"A"}`, ""},
		{"a reset", func() error {
			return s.RecordReset(ctx, a, tenants.Reset{Subject: "=alice", Resource: "x", Reason: "our mistake"}, func(context.Context) ([]string, error) { return []string{"q"}, nil })
		}, "reset", "subject:=alice", "", `{"rules":["q"],"resource":"x"}`, "our mistake"},
		{"a reset that fails", func() error {
			require.ErrorIs(t, s.RecordReset(ctx, a, tenants.Reset{Subject: "x"}, func(context.Context) ([]string, error) { return nil, os.ErrClosed }), os.ErrClosed)
			return nil
		}, "", "", "", "", ""},
	}
	for _, step := range steps {
		require.NoError(t, step.do(), step.name)
		rows := trailOf(t, s, a, seen)
		if step.action == "" {
			require.Empty(t, rows, step.name)
			continue
		}
		require.Len(t, rows, 1, step.name)
		row := rows[0]
		seen++
		fill := strings.NewReplacer("KEY", key.ID.String(), "LAST", key.Last4, "NEXT", next.ID.String(), "4TSAL", next.Last4, "MEMBER", member.ID.String()).Replace
		require.Equal(t, seen, row.Sequence, step.name)
		require.Equal(t, step.action+" "+fill(step.target), row.Action+" "+row.Kind+":"+row.Target, step.name)
		requireJSON(t, fill(step.before), row.Before, step.name)
		requireJSON(t, fill(step.after), row.After, step.name)
		require.Equal(t, step.reason, row.Reason, step.name)
		require.Equal(t, "key", row.ActorKind)
		require.Equal(t, a.KeyID(), *row.ActorID)
		require.Equal(t, "first key", row.ActorName)
		require.Equal(t, tenants.Origin{Address: "192.0.2.7", UserAgent: "agent/1", RequestID: "req-1"}, tenants.Origin{Address: row.Address, UserAgent: row.UserAgent, RequestID: row.RequestID})
		require.WithinDuration(t, time.Now(), row.At, time.Minute)
	}
	report := trailIsIntact(t, s, a)
	require.True(t, report.Valid, report.Problem)
	require.Equal(t, seen, report.Rows)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		var secrets int
		require.NoError(t, conn.QueryRow(ctx, `SELECT count(*) FROM audit a WHERE a::text ILIKE '%hash":%' OR a::text ILIKE '%weir\_%'`).Scan(&secrets))
		require.Zero(t, secrets, "neither keys nor their hashes")
	})
}

var instants = regexp.MustCompile(`"(expires_at|revoked_at)":"[^"]*"`)

// requireJSON compares objects. EXPIRES and REVOKED in want match any instant.
func requireJSON(t *testing.T, want string, got json.RawMessage, name string) {
	t.Helper()
	if want == "" {
		require.Nil(t, got, name)
		return
	}
	text := string(got)
	if strings.Contains(want, "EXPIRES") || strings.Contains(want, "REVOKED") {
		text, want = instants.ReplaceAllString(text, `"$1":"?"`), instants.ReplaceAllString(want, `"$1":"?"`)
	}
	require.JSONEq(t, want, text, name)
}

// A change of two objects writes two rows.
func TestAuditDefaultPlan(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustPlan(t, d.Store, a, "free")
	seen := trailIsIntact(t, d.Store, a).Rows
	require.NoError(t, second(d.Store.CreatePlan(t.Context(), a, tenants.Plan{Slug: "pro", Default: true})))
	var got []string
	for _, row := range trailOf(t, d.Store, a, seen) {
		got = append(got, fmt.Sprintf("%s %s %s %s", row.Action, row.Target, row.Before, row.After))
	}
	require.ElementsMatch(t, []string{
		`update free {"default":true} {"default":false}`, `create pro  {"default":true,"slug":"pro"}`,
	}, got)
}

// A change by the operator is in the tenant's trail and in the operator's own, which remains when
// the tenant is deleted.
func TestAuditOfTheOperator(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	s := d.Store
	_, secret, err := s.CreateOperatorKey(t.Context(), "me")
	require.NoError(t, err)
	platform := d.Actor(secret)
	ctx := tenants.WithOrigin(t.Context(), tenants.Origin{Address: "192.0.2.1", RequestID: "r"})
	seen := trailIsIntact(t, s, platform).Rows
	require.EqualValues(t, 2, seen, "the platform tenant and the key")
	made, _, _, err := s.CreateTenant(ctx, platform, tenants.NewTenant{Slug: "made"})
	require.NoError(t, err)
	require.NoError(t, second(s.EditTenantByRef(ctx, platform, "made", tenants.Match{}, func(in *tenants.Tenant) error { in.State = tenants.TenantSuspended; return nil })))
	theirs := trailOf(t, s, tenants.AsSystem(made.ID, "test"), 0)
	require.Len(t, theirs, 3, "the tenant, its key, its state")
	for _, row := range theirs {
		require.Equal(t, "operator operator", row.ActorKind+" "+row.ActorName)
		require.Empty(t, row.Address, "tenants do not see the address of the operator")
	}
	require.NoError(t, s.DeleteTenant(ctx, platform, "made", tenants.Match{}))
	var got []string
	for _, row := range trailOf(t, s, platform, seen) {
		got = append(got, row.Action+" "+row.Target)
		require.Equal(t, "me", row.ActorName)
		require.Equal(t, "192.0.2.1", row.Address)
		if row.Action == "delete" {
			require.Contains(t, string(row.Before), `"audit_head":"3:`)
		}
	}
	require.Equal(t, []string{"create made", "update made", "delete made"}, got)
	require.True(t, trailIsIntact(t, s, platform).Valid)
}

func TestAuditFilters(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	_, secret := d.Tenant("tenant-a")
	a, s := d.Actor(secret), d.Store
	b, _ := d.Tenant("tenant-b")
	mustRule(t, s, b, rule("r"))
	system := tenants.AsSystem(a.TenantID(), "loader")
	for i, slug := range []string{"r0", "r1", "r2"} {
		now.nowMS += 1000
		mustRule(t, s, []tenants.Actor{a, system}[i%2], rule(slug))
	}
	require.NoError(t, s.DeleteRule(t.Context(), a, "r1", tenants.Match{}))
	from, to := time.UnixMilli(now.nowMS-1000), time.UnixMilli(now.nowMS)
	for name, c := range map[string]struct {
		f    tenants.AuditFilter
		want string
	}{
		"all":         {tenants.AuditFilter{}, "delete r1, create r2, create r1, create r0"},
		"actor":       {tenants.AuditFilter{Actor: "loader"}, "create r1"},
		"actor by id": {tenants.AuditFilter{Actor: a.KeyID().String()}, "delete r1, create r2, create r0"},
		"action":      {tenants.AuditFilter{Action: "delete"}, "delete r1"},
		"target":      {tenants.AuditFilter{Target: "r1"}, "delete r1, create r1"},
		"kind":        {tenants.AuditFilter{Kind: "plan"}, ""},
		"time":        {tenants.AuditFilter{From: &from, To: &to}, "create r1"},
	} {
		var got []string
		page := tenants.Page{Limit: 2}
		for {
			rows, next, err := s.Audit(t.Context(), a, c.f, page)
			require.NoError(t, err)
			require.LessOrEqual(t, len(rows), 2)
			for _, row := range rows {
				if row.Kind == "rule" {
					got = append(got, row.Action+" "+row.Target)
				}
			}
			if next == "" {
				break
			}
			page.After = next
		}
		require.Equal(t, c.want, strings.Join(got, ", "), name)
	}
	_, _, err := s.Audit(t.Context(), a, tenants.AuditFilter{Target: "a\x00"}, tenants.Page{})
	requireInvalid(t, err, "target")
	_, _, err = s.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{After: "x"})
	requireInvalid(t, err, "cursor")
}

// Concurrent changes make one chain per tenant.
func TestAuditConcurrently(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	var all sync.WaitGroup
	for worker := range 2 { // for each tenant: in total as many as there are connections
		for _, actor := range []tenants.Actor{a, b} {
			all.Go(func() {
				for i := range 10 {
					subject := tenants.Subject{Subject: fmt.Sprintf("s%d-%d", worker, i)}
					if _, _, err := d.Store.PutSubject(t.Context(), actor, subject, tenants.Match{}); err != nil {
						t.Error(err)
					}
					err := d.Store.RecordReset(t.Context(), actor, tenants.Reset{Subject: subject.Subject}, func(context.Context) ([]string, error) { return nil, nil })
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	all.Wait()
	for _, actor := range []tenants.Actor{a, b} {
		report := trailIsIntact(t, d.Store, actor)
		require.True(t, report.Valid, report.Problem)
		require.EqualValues(t, 2+40, report.Rows)
	}
}

// The roles of the server can only append to the trail.
func TestAuditIsAppendOnly(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	for _, role := range []string{"weir_app", "weir_system"} {
		for _, statement := range []string{
			"UPDATE audit SET target = 'x'", "DELETE FROM audit", "TRUNCATE audit", "DELETE FROM audit_heads", "TRUNCATE audit_heads",
			"UPDATE audit_heads SET tenant_id = gen_random_uuid()", "ALTER TABLE audit DISABLE ROW LEVEL SECURITY",
		} {
			asRole(t, d, role, func(ctx context.Context, tx pgx.Tx) {
				_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", a.TenantID().String())
				require.NoError(t, err)
				if role == "weir_system" && statement == "DELETE FROM audit" {
					return // old rows: see TestAuditRetention
				}
				_, err = tx.Exec(ctx, statement)
				var pgErr *pgconn.PgError
				require.ErrorAs(t, err, &pgErr, "%s: %s", role, statement)
				require.Equal(t, "42501", pgErr.Code, "%s: %s", role, statement)
			})
		}
	}
	asRole(t, d, "weir_app", func(ctx context.Context, tx pgx.Tx) {
		_, err := tx.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, true)", a.TenantID().String())
		require.NoError(t, err)
		for _, table := range []string{"audit", "audit_heads"} {
			var foreign int
			require.NoError(t, tx.QueryRow(ctx, "SELECT count(*) FROM "+table+" WHERE tenant_id <> $1", a.TenantID()).Scan(&foreign))
			require.Zero(t, foreign, table)
		}
		_, err = tx.Exec(ctx, "INSERT INTO audit_heads (tenant_id, sequence, hash) VALUES ($1, 0, $2)", b.TenantID(), make([]byte, 32))
		require.ErrorContains(t, err, "row-level security")
	})
}

// Changes by the owner of the database are detected: a hundred copies of a trail, each of them
// manipulated in another way.
func TestTamperedTrails(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s := d.Store
	for i := range 18 {
		mustRule(t, s, a, rule(fmt.Sprintf("r%d", i)))
		mustRule(t, s, b, rule(fmt.Sprintf("r%d", i)))
		require.NoError(t, s.DeleteRule(t.Context(), a, fmt.Sprintf("r%d", i), tenants.Match{}))
	}
	verified := trailIsIntact(t, s, a)
	require.True(t, verified.Valid, verified.Problem)
	const last = 2 + 2*18
	require.EqualValues(t, last, verified.Rows)
	remembered := verified.Head
	again, err := tenants.ParseAuditMark(remembered.String())
	require.NoError(t, err)
	require.Equal(t, remembered, again)
	d.Exec("CREATE TABLE kept AS SELECT * FROM audit; CREATE TABLE kept_heads AS SELECT * FROM audit_heads")

	copies := tamperings(last)
	require.GreaterOrEqual(t, len(copies), 100)
	for _, tamper := range copies {
		d.Exec(strings.ReplaceAll(tamper.sql, "$A", "'"+a.TenantID().String()+"'"))
		report, err := s.VerifyAudit(t.Context(), a, tenants.AuditVerification{Remembered: &remembered})
		require.NoError(t, err)
		require.False(t, report.Valid, tamper.sql)
		require.NotEmpty(t, report.Problem)
		require.Equal(t, tamper.brokenAt, report.BrokenAt, "%s: %s", tamper.sql, report.Problem)
		require.Equal(t, tamper.brokenAt-1, report.Rows, tamper.sql)
		d.Exec("TRUNCATE audit, audit_heads; INSERT INTO audit SELECT * FROM kept; INSERT INTO audit_heads SELECT * FROM kept_heads")
	}
	report, err := s.VerifyAudit(t.Context(), a, tenants.AuditVerification{Remembered: &remembered})
	require.NoError(t, err)
	require.True(t, report.Valid, "and the copy itself is intact")
	t.Logf("%d tampered copies, all detected", len(copies))

	// A trail that was written again from some row on is valid by itself. Only a stored mark
	// detects it.
	d.Exec("DELETE FROM audit WHERE tenant_id = $1 AND sequence > 5", a.TenantID())
	d.Exec("UPDATE audit_heads h SET sequence = 5, hash = a.hash FROM audit a WHERE a.tenant_id = $1 AND h.tenant_id = $1 AND a.sequence = 5", a.TenantID())
	for i := range last {
		mustSubject(t, s, a, tenants.Subject{Subject: fmt.Sprintf("forged-%d", i)})
	}
	require.True(t, trailIsIntact(t, s, a).Valid)
	report, err = s.VerifyAudit(t.Context(), a, tenants.AuditVerification{Remembered: &remembered})
	require.NoError(t, err)
	require.False(t, report.Valid)
	require.EqualValues(t, last, report.BrokenAt)
}

// A long trail is verified in parts. Each part continues where the previous one ended, also if old
// rows are deleted in between, and detects errors in the rows that it reads.
func TestVerifyAuditInParts(t *testing.T) {
	t.Parallel()
	now := &clock{nowMS: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()}
	d := tenantstest.NewWith(t, tenants.Config{Now: now.now})
	s := d.Store
	a, _ := d.Tenant("tenant-a")
	for i := range 8 { // rows 3 to 10
		now.nowMS += 1000
		mustRule(t, s, a, rule(fmt.Sprintf("r%d", i)))
	}
	rows := trailOf(t, s, a, 0)
	mark := func(n int) *tenants.AuditMark { return &tenants.AuditMark{Sequence: int64(n), Hash: rows[n-1].Hash} }
	verify := func(v tenants.AuditVerification) tenants.AuditReport {
		t.Helper()
		report, err := s.VerifyAudit(t.Context(), a, v)
		require.NoError(t, err)
		return report
	}
	first := verify(tenants.AuditVerification{Rows: 4})
	require.True(t, first.Valid)
	require.False(t, first.Complete)
	require.EqualValues(t, 4, first.Rows)
	require.Equal(t, *mark(4), first.Head)
	rest := verify(tenants.AuditVerification{After: &first.Head})
	require.True(t, rest.Valid)
	require.True(t, rest.Complete)
	require.EqualValues(t, 6, rest.Rows)
	require.Equal(t, *mark(4), rest.From)
	require.Equal(t, *mark(10), rest.Head)

	for _, wrong := range []tenants.AuditMark{{Sequence: 4, Hash: rows[4].Hash}, {Sequence: 11, Hash: rows[4].Hash}} {
		report := verify(tenants.AuditVerification{After: &wrong})
		require.False(t, report.Valid)
		require.Equal(t, wrong.Sequence, report.BrokenAt)
		require.True(t, report.Complete)
	}
	require.False(t, verify(tenants.AuditVerification{After: mark(6), Remembered: &tenants.AuditMark{Sequence: 5, Hash: rows[3].Hash}}).Valid)
	require.True(t, verify(tenants.AuditVerification{After: mark(6), Remembered: mark(5)}).Valid)
	require.False(t, verify(tenants.AuditVerification{After: mark(6), Remembered: &tenants.AuditMark{Sequence: 8, Hash: rows[3].Hash}}).Valid)

	_, err := s.PurgeAudit(t.Context(), rows[6].At) // rows 1 to 6
	require.NoError(t, err)
	rest = verify(tenants.AuditVerification{After: &first.Head})
	require.True(t, rest.Valid, rest.Problem)
	require.EqualValues(t, 4, rest.Rows, "from the first remaining row on")
	require.Equal(t, *mark(6), rest.From)
	d.Exec("UPDATE audit SET reason = 'x' WHERE tenant_id = $1 AND sequence = 7", a.TenantID())
	require.True(t, verify(tenants.AuditVerification{After: mark(7)}).Valid, "verified rows are not read again")
	require.EqualValues(t, 7, verify(tenants.AuditVerification{After: mark(6)}).BrokenAt)
}

// A request for a long trail ends after the page in which its time is over.
func TestVerifyAuditWithin(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	var many tenants.Document
	for i := range 1200 {
		many.Subjects = append(many.Subjects, tenants.Subject{Subject: fmt.Sprint(i)})
	}
	_, err := d.Store.ApplyDocument(t.Context(), a, many, tenants.Apply{})
	require.NoError(t, err)
	var asked int64
	slow := d.Open(tenants.Config{Now: func() time.Time { asked++; return time.Unix(asked, 0) }})
	first, err := slow.VerifyAudit(t.Context(), a, tenants.AuditVerification{Within: time.Second})
	require.NoError(t, err)
	require.True(t, first.Valid)
	require.False(t, first.Complete)
	require.EqualValues(t, 1000, first.Rows)
	rest, err := slow.VerifyAudit(t.Context(), a, tenants.AuditVerification{Within: time.Second, After: &first.Head})
	require.NoError(t, err)
	require.True(t, rest.Complete)
	require.EqualValues(t, 2+200, rest.Rows)
}

type tampering struct {
	sql      string // $A is the tenant
	brokenAt int64
}

func tamperings(last int64) (all []tampering) {
	add := func(brokenAt int64, format string, args ...any) {
		all = append(all, tampering{fmt.Sprintf(format, args...), brokenAt})
	}
	for n := int64(1); n <= last; n += 3 { // edits of each column
		columns := []string{
			"at = at + interval '1 microsecond'", "actor_kind = 'key'", "actor_name = actor_name || ' '", "actor_id = gen_random_uuid()",
			"address = '::1'", "user_agent = 'x'", "request_id = 'x'", "action = 'forge'", "kind = 'plan'", "target = target || 'x'",
			"before = '{}'", "after = '{\"limit\":1}'", "reason = 'x'", "id = gen_random_uuid()", "hash = sha256(hash)",
			"actor_name = '', address = actor_name || 'x'",
		}
		for i := range 2 {
			add(n, "UPDATE audit SET %s WHERE tenant_id = $A AND sequence = %d", columns[(int(n)+7*i)%len(columns)], n)
		}
	}
	for n := int64(1); n <= last; n += 2 { // deletions; that of the last row is detected by the recorded end
		add(n, "DELETE FROM audit WHERE tenant_id = $A AND sequence = %d", n)
	}
	for n := int64(2); n < last; n += 3 { // a deletion after which all later rows are renumbered
		add(n, "DELETE FROM audit WHERE tenant_id = $A AND sequence = %d; "+
			"UPDATE audit SET sequence = sequence + 1000 WHERE tenant_id = $A AND sequence > %[1]d; "+
			"UPDATE audit SET sequence = sequence - 1001 WHERE tenant_id = $A AND sequence > 1000", n)
	}
	for n := int64(1); n <= last; n += 4 { // insertions of a copy of the row, and of another tenant's row
		for _, tenant := range []string{"= $A", "<> $A AND EXISTS (SELECT FROM audit b WHERE b.tenant_id = audit.tenant_id AND b.target = 'r1')"} {
			if n > 18 && tenant != "= $A" {
				continue
			}
			at := n // position of the other tenant's row
			if tenant == "= $A" {
				at++ // position of the row itself, after its copy
			}
			add(at, "UPDATE audit SET sequence = sequence + 1000 WHERE tenant_id = $A AND sequence >= %d; "+
				"INSERT INTO audit SELECT $A, %[1]d, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id, action, kind, target, "+
				"before, after, reason, hash FROM audit WHERE tenant_id %[2]s AND sequence = CASE WHEN tenant_id = $A THEN 1000 ELSE 0 END + %[1]d; "+
				"UPDATE audit SET sequence = sequence - 999 WHERE tenant_id = $A AND sequence > 1000; "+
				"UPDATE audit_heads SET sequence = sequence + 1 WHERE tenant_id = $A", n, tenant)
		}
	}
	for n := int64(1); n < last; n += 2 { // two rows exchanged
		add(n, "UPDATE audit SET sequence = 1000 WHERE tenant_id = $A AND sequence = %d; "+
			"UPDATE audit SET sequence = %[1]d WHERE tenant_id = $A AND sequence = %[2]d; "+
			"UPDATE audit SET sequence = %[2]d WHERE tenant_id = $A AND sequence = 1000", n, n+1)
	}
	for n := int64(0); n < last; n += 3 { // truncated, together with the recorded end
		add(n+1, "DELETE FROM audit WHERE tenant_id = $A AND sequence > %d; UPDATE audit_heads h SET sequence = %[1]d, "+
			"hash = coalesce((SELECT hash FROM audit a WHERE a.tenant_id = $A AND a.sequence = %[1]d), '\\x%064d') WHERE tenant_id = $A", n, 0)
	}
	add(last+1, "DELETE FROM audit_heads WHERE tenant_id = $A")
	return all
}

// An invalid text is not a mark.
func TestParseAuditMark(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "1", "1:", "x:" + strings.Repeat("0", 64), "1:" + strings.Repeat("0", 63), "-1:" + strings.Repeat("0", 64), "0:" + strings.Repeat("1", 64), "1:" + strings.Repeat("g", 64)} {
		_, err := tenants.ParseAuditMark(text)
		require.Error(t, err, text)
	}
}

// An empty trail is valid, for example that of a tenant from before there were trails.
func TestEmptyTrail(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	d.Exec("TRUNCATE audit, audit_heads")
	require.True(t, trailIsIntact(t, d.Store, a).Valid)
	mustRule(t, d.Store, a, rule("r"))
	report := trailIsIntact(t, d.Store, a)
	require.True(t, report.Valid)
	require.EqualValues(t, 1, report.Rows)
	var heads []string
	require.NoError(t, d.Store.AuditHeads(t.Context(), func(h tenants.AuditHead) { heads = append(heads, h.Slug+" "+h.String()) }))
	require.Equal(t, []string{"tenant-a " + report.Head.String()}, heads)
	require.NotEqual(t, uuid.Nil, a.TenantID())
}

// Each statement that writes configuration also writes the trail. This test fails for a new
// statement that does not.
func TestEveryWriteIsAudited(t *testing.T) {
	t.Parallel()
	// Statements that write no configuration, with the reason.
	exempt := map[string]string{
		"NextVersion":          "the number of a change, whose writes are recorded",
		"StampPlansOfRule":     "versions only",
		"StampSubjectsOfRule":  "versions only",
		"StampSubject":         "versions only",
		"TouchKeys":            "when a key was used",
		"RaiseSubjectsHistory": "what servers know of deletions",

		"ReencryptBillingEndpoint":   "the same secrets, encrypted with another key",
		"RecordBillingEndpointEvent": "when an event arrived",
		"RecordBillingEndpointLook":  "the version that was processed",
		"ClaimBillingReconcile":      "who compares",
		"RecordBillingReconcile":     "when it was compared",

		"ReencryptNotificationEndpoint": "the same secrets, encrypted with another key",
		"RecordDroppedNotification":     "how many were too many",

		"UsePortalLink":      "when a link was followed",
		"PurgePortalLinks":   "links that expired",
		"PurgeLimitRequests": "what was settled long ago",

		"MarkOpenedCredits": "what the counters know",
		"SettleCredits":     "what checks have spent",
		"PurgeCredits":      "deletes what has expired",
	}
	recording, err := filepath.Glob("audit_writes*.go")
	require.NoError(t, err)
	var writes []byte
	for _, source := range recording {
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		writes = append(writes, text...)
	}
	files, err := filepath.Glob("queries/*.sql")
	require.NoError(t, err)
	name := regexp.MustCompile(`(?m)^-- name: (\w+)`)
	configuration := regexp.MustCompile(`(?i)\b(INSERT INTO|UPDATE|DELETE FROM)\s+(tenants|api_keys|rules|routes|plans|plan_limits|subjects|overrides|members|billing_endpoints|billing_prices|portals|portal_links|limit_requests|credit_grants|notification_endpoints|security_settings)\b`)
	found := 0
	for _, file := range files {
		sql, err := os.ReadFile(file)
		require.NoError(t, err)
		starts := name.FindAllSubmatchIndex(sql, -1)
		for i, start := range starts {
			end := len(sql)
			if i+1 < len(starts) {
				end = starts[i+1][0]
			}
			query := string(sql[start[2]:start[3]])
			if !configuration.Match(sql[start[3]:end]) || exempt[query] != "" {
				continue
			}
			found++
			require.Contains(t, string(writes), "func (c *change) "+query+"(", "%s of %s must record what it writes, in audit_writes*.go", query, file)
		}
	}
	require.Greater(t, found, 15)
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	around := regexp.MustCompile(`\.Queries\.(Insert|Update|Upsert|Delete|Clear)\w*\(`)
	for _, source := range sources {
		if slices.Contains(recording, source) {
			continue
		}
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		require.NotRegexp(t, around, string(text), "%s bypasses the audit trail", source)
	}
}
