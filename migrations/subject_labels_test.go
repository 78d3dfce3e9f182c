package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/migrations"
)

// Subjects that existed before the table of labels are found by their labels, too.
func TestLabelsOfOldSubjects(t *testing.T) {
	t.Parallel()
	u := newDatabase(t)
	require.NoError(t, migrations.Up(t.Context(), u))
	for version := 0; version != 14; {
		require.NoError(t, migrations.Down(t.Context(), u))
		var err error
		version, _, err = migrations.Version(t.Context(), u)
		require.NoError(t, err)
	}
	exec(t, u, `
		INSERT INTO tenants (id, slug, version, policy_version, subjects_version, keys_version)
			VALUES ('00000000-0000-0000-0000-00000000000a', 'a', 1, 1, 1, 1);
		INSERT INTO subjects (tenant_id, subject, id, labels, version) VALUES
			('00000000-0000-0000-0000-00000000000a', 'one', '00000000-0000-0000-0000-00000000000b', '{"k": "v", "l": ""}', 1),
			('00000000-0000-0000-0000-00000000000a', 'two', '00000000-0000-0000-0000-00000000000c', '{}', 1)`)
	require.NoError(t, migrations.Up(t.Context(), u))
	conn, err := pgx.Connect(t.Context(), u)
	require.NoError(t, err)
	defer conn.Close(t.Context())
	rows, err := conn.Query(t.Context(), "SELECT subject || ' ' || key || '=' || value FROM subject_labels ORDER BY 1")
	require.NoError(t, err)
	labels, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"one k=v", "one l="}, labels)
}
