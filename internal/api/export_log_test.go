package api

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The log says why an export ended for another tenant, and nothing if its client has disconnected.
func TestCanceledExportsAreLogged(t *testing.T) {
	t.Parallel()
	logged := func(errs ...error) string {
		var log bytes.Buffer
		a := &admin{logger: slog.New(slog.NewJSONHandler(&log, nil))}
		a.logExport(t.Context(), errors.Join(errs...))
		return log.String()
	}
	for _, gone := range []error{tenants.ErrExportUnread, errClientGone} {
		line := logged(gone, tenants.ErrExportEnds)
		require.Contains(t, line, "another tenant waits for its place")
		require.Contains(t, line, `"level":"INFO"`)
		require.Empty(t, logged(gone, errors.New("broken pipe")))
	}
	require.Contains(t, logged(errors.New("of the database")), `"level":"ERROR"`)
}
