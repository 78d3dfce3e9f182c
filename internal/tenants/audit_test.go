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

	"github.com/jackc/pgx/v5"
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
		"MarkBillingPrices":          "which events to look at",
		"RecordBillingPricesLook":    "which events were looked at",
		"RecordBillingEndpointLook":  "the version that was processed",
		"ClaimBillingReconcile":      "who compares",
		"RenewBillingReconcile":      "who compares",
		"RecordBillingReconcile":     "when it was compared",

		"RecordBillingReconcileFailure": "why it was not compared",
		"RecordBillingRefusal":          "when an event was refused",

		"ReencryptNotificationEndpoint": "the same secrets, encrypted with another key",
		"RecordDroppedNotification":     "how many were too many",

		"UsePortalLink":      "when a link was followed",
		"PurgePortalLinks":   "links that expired",
		"PurgeLimitRequests": "what was settled long ago",

		"MarkTenantDeleted": "a part of DeleteTenant, which records it",
		"DeleteMembersOf":   "a part of DeleteTenant, which records it",
		"DeleteTenantRow":   "what is left of a deletion that was recorded",

		"MarkOpenedCredits": "what the counters know",
		"SettleCredits":     "what checks have spent",
		"PurgeCredits":      "deletes what has expired",
		"PurgeKeys":         "deletes what has ended",
		"PurgeKeysOf":       "deletes what has ended",
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

// An export of the trail has pages of about 1 MiB. Before, a page had 1000 rows of any size.
func TestAuditPagesOfAnExport(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	const rows, size = 60, 50_000
	for range rows {
		d.Exec(`INSERT INTO audit (tenant_id, sequence, id, at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target, after, reason, hash)
			SELECT tenant_id, sequence + 1, gen_random_uuid(), at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target,
				jsonb_build_object('x', repeat('x', $2)), reason, hash FROM audit WHERE tenant_id = $1 ORDER BY sequence DESC LIMIT 1`, a.TenantID(), size)
	}
	seen, pages := map[int64]bool{}, 0
	for page := tenants.ExportPage(); ; pages++ {
		entries, next, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{}, page)
		require.NoError(t, err)
		bytes := 0
		for i := range entries {
			require.False(t, seen[entries[i].Sequence])
			seen[entries[i].Sequence] = true
			bytes += len(entries[i].After)
		}
		require.Less(t, bytes, 1<<20+2*size)
		if next == "" {
			break
		}
		page = page.Following(len(entries), next)
	}
	require.Greater(t, len(seen), rows)
	require.Equal(t, 2, pages)
}

// A page that ends by its bytes is read in parts, and has as many rows as fit.
func TestAuditPagesEndByBytes(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	const rows, size = 90, 10_000
	for range rows {
		d.Exec(`INSERT INTO audit (tenant_id, sequence, id, at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target, after, reason, hash)
			SELECT tenant_id, sequence + 1, gen_random_uuid(), at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target,
				jsonb_build_object('x', repeat('x', $2)), reason, hash FROM audit WHERE tenant_id = $1 ORDER BY sequence DESC LIMIT 1`, a.TenantID(), size)
	}
	all, _, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{Limit: 200})
	require.NoError(t, err)
	var paged []tenants.AuditEntry
	var lengths []int
	for page := (tenants.Page{Limit: 70, Bytes: 50 * size}); ; {
		entries, next, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{}, page)
		require.NoError(t, err)
		paged, lengths = append(paged, entries...), append(lengths, len(entries))
		if page.After = next; next == "" {
			break
		}
	}
	require.Equal(t, all, paged)
	require.Equal(t, []int{50, len(all) - 50}, lengths)
	some, next, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{Limit: 30, Bytes: 50 * size})
	require.NoError(t, err)
	require.Len(t, some, 30)
	require.NotEmpty(t, next)
}

// A page with a bound has only the sizes of the fields of larger rows, and of created objects those
// beyond a quarter. It differs in nothing else.
func TestAuditFieldsAreBounded(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, _ := d.Tenant("tenant-a")
	const most = 4000
	add := func(before, after any) {
		d.Exec(`INSERT INTO audit (tenant_id, sequence, id, at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target, before, after, reason, hash)
			SELECT tenant_id, sequence + 1, gen_random_uuid(), at, actor_kind, actor_name, address, user_agent, request_id, action, kind, target,
				$2::json, $3::json, reason, hash FROM audit WHERE tenant_id = $1 ORDER BY sequence DESC LIMIT 1`, a.TenantID(), before, after)
	}
	object := func(size int) string { return `{"x":"` + strings.Repeat("x", size-8) + `"}` }
	add(object(most/2), object(most/2))
	add(object(most/2), object(most/2+1))
	add(nil, object(most/4))
	add(nil, object(most/4+1))
	add(object(most/4+1), nil)
	add(nil, nil)
	all, _, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{Limit: 7})
	require.NoError(t, err)
	bounded, next, err := d.Store.Audit(t.Context(), a, tenants.AuditFilter{}, tenants.Page{Limit: 6, Fields: most})
	require.NoError(t, err)
	require.NotEmpty(t, next)
	for i, omitted := range []bool{false, true, true, false, true, false} {
		full, row := all[i], bounded[i]
		require.Equal(t, omitted, row.Omitted(), i)
		require.Equal(t, full.Whole(), row.Whole(), i)
		if omitted {
			require.Nil(t, row.Before, i)
			require.Nil(t, row.After, i)
			require.Equal(t, []int{len(full.Before), len(full.After)}, []int{row.BeforeBytes, row.AfterBytes}, i)
			full.Before, full.After, full.BeforeBytes, full.AfterBytes = nil, nil, row.BeforeBytes, row.AfterBytes
		}
		require.Equal(t, full, row, i)
	}
}
