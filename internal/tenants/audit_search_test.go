package tenants_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// A page of a long trail uses an index, also if Postgres makes a generic plan for a frequent
// statement.
func TestAuditSearchesUseAnIndex(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	const rows = 100_000
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	d.Conn(func(ctx context.Context, conn *pgx.Conn) {
		for _, statement := range []string{
			"ALTER TABLE audit NO FORCE ROW LEVEL SECURITY",
			// Ten rows are of one key, five are resets, one in a hundred is of a plan, and each
			// target has ten rows. There is one row per second.
			fmt.Sprintf(`INSERT INTO audit (tenant_id, sequence, id, at, actor_kind, actor_id, actor_name, address, user_agent, request_id, action, kind, target, reason, hash)
				SELECT '%s', n, gen_random_uuid(), '%s'::timestamptz + n * interval '1 second', 'key', CASE WHEN n %% 10000 = 1 THEN '%s'::uuid END,
					CASE WHEN n %% 10000 = 1 THEN 'rare' WHEN n %% 2 = 1 THEN 'odd' ELSE 'even' END, '192.0.2.1', 'agent/1', 'request',
					CASE WHEN n %% 20000 = 1 THEN 'reset' WHEN n %% 3 = 1 THEN 'create' ELSE 'update' END,
					CASE WHEN n %% 100 = 1 THEN 'plan' ELSE 'subject' END, 'target-' || n %% 10000, '', sha256(n::text::bytea)
				FROM generate_series(3, %d) n`, a.TenantID(), start.Format(time.RFC3339), uuid.New(), rows),
			"ALTER TABLE audit FORCE ROW LEVEL SECURITY", "VACUUM ANALYZE audit", "SET ROLE weir_app",
		} {
			_, err := conn.Exec(ctx, statement)
			require.NoError(t, err)
		}
		_, err := conn.Exec(ctx, "SELECT set_config('weir.tenant_id', $1, false)", a.TenantID().String())
		require.NoError(t, err)
		second := func(n int) *time.Time { return ptr(start.Add(time.Duration(n) * time.Second)) }
		for i, f := range []tenants.AuditFilter{
			{}, {Actor: "odd"}, {Actor: "rare"}, {Actor: "nobody"}, {Action: "create"}, {Action: "reset"}, {Action: "rotate"}, {Kind: "plan"},
			{Kind: "subject", Target: "target-7"}, {Target: "target-7"}, {Target: "nothing"}, {Kind: "member"},
			{From: second(99_000)}, {To: second(1000)}, {From: second(50_000), To: second(50_100)}, {From: second(200_000)},
			{Actor: "rare", Action: "reset"}, {Action: "reset", From: second(90_000)}, {Actor: "rare", Target: "target-1"},
			{Actor: "odd", Kind: "subject", Target: "target-7", Action: "create", From: second(10), To: second(90_000)},
		} {
			for _, mode := range []string{"force_custom_plan", "force_generic_plan"} {
				requireAuditIndexed(ctx, t, conn, a.TenantID(), f, mode, fmt.Sprintf("q%d", i))
			}
		}
	})
}

func requireAuditIndexed(ctx context.Context, t *testing.T, conn *pgx.Conn, tenant uuid.UUID, f tenants.AuditFilter, mode, name string) {
	t.Helper()
	sql, args := tenants.AuditListSQL(tenant, f)
	_, err := conn.Exec(ctx, "SET plan_cache_mode = "+mode)
	require.NoError(t, err)
	_, err = conn.Prepare(ctx, name, sql)
	require.NoError(t, err)
	literals := make([]string, len(args))
	for i, arg := range args {
		literals[i] = literal(arg)
	}
	var raw []byte
	explain := "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) EXECUTE " + name + "(" + strings.Join(literals, ", ") + ")"
	require.NoError(t, conn.QueryRow(ctx, explain, pgx.QueryExecModeSimpleProtocol).Scan(&raw))
	var plans []struct{ Plan map[string]any }
	require.NoError(t, json.Unmarshal(raw, &plans))
	what := fmt.Sprintf("%+v, %s\n%s\n%s", f, mode, sql, raw)
	eachNode(plans[0].Plan, func(node map[string]any) { require.NotEqual(t, "Seq Scan", node["Node Type"], what) })
	blocks, _ := plans[0].Plan["Shared Hit Blocks"].(float64)
	// By name, action or target, few more blocks are read than those of the result. If an index
	// does not have the order by sequence or the column, Postgres may read the trail from its end;
	// 100 000 rows have 3 200 blocks.
	most := 3500.0
	if f.Actor != "" || f.Action != "" || f.Target != "" {
		most = 100                             // a target may be of each kind, and each kind is looked up on its own
		if strings.Contains(mode, "generic") { // with a generic plan, it may read all rows of this value
			most = 800
		}
	}
	require.LessOrEqual(t, blocks, most, what)
}

// literal returns a value in SQL notation.
func literal(v any) string {
	switch v := v.(type) {
	case []string:
		return "'{" + strings.Join(v, ",") + "}'"
	case pgtype.Timestamptz:
		switch v.InfinityModifier {
		case pgtype.Infinity:
			return "'infinity'"
		case pgtype.NegativeInfinity:
			return "'-infinity'"
		}
		return "'" + v.Time.Format(time.RFC3339Nano) + "'"
	}
	return fmt.Sprintf("'%v'", v)
}
