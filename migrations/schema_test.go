package migrations_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
	"weir/migrations"
)

var update = flag.Bool("update", false, "write docs/schema.sql")

// TestSchemaDocument compares docs/schema.sql, the documentation of the resulting schema, with the
// database. After a new migration: go test ./migrations -run SchemaDocument -update
func TestSchemaDocument(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	file := filepath.Join(testenv.Root(), "docs", "schema.sql")
	got := describe(t, u)
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o600))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "go test ./migrations -run SchemaDocument -update")
}

// describe lists tables, constraints, indexes, triggers, policies and grants.
func describe(t *testing.T, databaseURL string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), databaseURL)
	require.NoError(t, err)
	defer conn.Close(context.Background())
	list := func(query string, args ...any) []string {
		rows, err := conn.Query(t.Context(), query, args...)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return lines
	}
	var b strings.Builder
	b.WriteString("-- The schema after all migrations, for reading. The reasons are in migrations/.\n")
	b.WriteString("-- Partitions are omitted: they have the same definition as their table.\n")
	for _, table := range list(`SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'schema_migrations' ORDER BY c.relname`) {
		lines := list(columnsSQL, table)
		lines = append(lines, list(`SELECT pg_get_constraintdef(oid) FROM pg_constraint
			WHERE conrelid = $1::text::regclass AND contype IN ('p', 'u', 'f', 'c') ORDER BY strpos('pufc', contype::text), pg_get_constraintdef(oid)`, table)...)
		fmt.Fprintf(&b, "\nCREATE TABLE %s (\n    %s\n)%s;\n", table, strings.Join(lines, ",\n    "), strings.Join(list(`SELECT ' PARTITION BY ' ||
			pg_get_partkeydef(oid) FROM pg_class WHERE oid = $1::text::regclass AND relkind = 'p'`, table), ""))
		for _, query := range []string{indexesSQL, triggersSQL, securitySQL, policiesSQL, grantsSQL} {
			for _, line := range list(query, table) {
				b.WriteString(line + ";\n")
			}
		}
	}
	return b.String()
}

const (
	columnsSQL = `SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
			|| CASE WHEN a.attcollation <> t.typcollation THEN ' COLLATE ' || quote_ident(l.collname) ELSE '' END
			|| CASE WHEN a.attnotnull THEN ' NOT NULL' ELSE '' END
			|| CASE WHEN d.oid IS NULL THEN '' WHEN a.attgenerated = 's' THEN ' GENERATED ALWAYS AS ' || pg_get_expr(d.adbin, d.adrelid) || ' STORED'
				ELSE ' DEFAULT ' || pg_get_expr(d.adbin, d.adrelid) END
		FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_collation l ON l.oid = a.attcollation
		LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid = $1::text::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum`
	indexesSQL = `SELECT replace(pg_get_indexdef(i.indexrelid), ' public.', ' ') FROM pg_index i
		WHERE i.indrelid = $1::text::regclass AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid AND contype IN ('p', 'u'))
		ORDER BY 1`
	triggersSQL = `SELECT replace(pg_get_triggerdef(oid), ' public.', ' ') FROM pg_trigger WHERE tgrelid = $1::text::regclass AND NOT tgisinternal ORDER BY tgname`
	securitySQL = `SELECT 'ALTER TABLE ' || relname || ' ENABLE ROW LEVEL SECURITY'
			|| CASE WHEN relforcerowsecurity THEN ', FORCE ROW LEVEL SECURITY' ELSE '' END
		FROM pg_class WHERE oid = $1::text::regclass AND relrowsecurity`
	policiesSQL = `SELECT 'CREATE POLICY ' || policyname || ' ON ' || tablename || ' FOR ' || cmd || ' TO ' || array_to_string(roles, ', ')
			|| coalesce(E'\n    USING (' || qual || ')', '') || coalesce(E'\n    WITH CHECK (' || with_check || ')', '')
		FROM pg_policies WHERE tablename = $1 ORDER BY policyname`
	// The grants on tables, then on single columns.
	grantsSQL = `SELECT 'GRANT ' || string_agg(privilege_type, ', ' ORDER BY privilege_type) || ' ON ' || min(table_name) || ' TO ' || grantee
		FROM information_schema.role_table_grants WHERE table_name = $1 AND grantee LIKE 'weir\_%' GROUP BY grantee
		UNION ALL
		SELECT 'GRANT ' || privilege_type || ' (' || string_agg(column_name, ', ' ORDER BY column_name) || ') ON ' || min(table_name) || ' TO ' || grantee
		FROM information_schema.role_column_grants c WHERE table_name = $1 AND grantee LIKE 'weir\_%' AND NOT EXISTS (
			SELECT FROM information_schema.role_table_grants t
			WHERE t.table_name = c.table_name AND t.grantee = c.grantee AND t.privilege_type = c.privilege_type)
		GROUP BY grantee, privilege_type
		ORDER BY 1`
)
