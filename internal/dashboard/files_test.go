package dashboard

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// The log says why a download ended for another tenant, and nothing if its browser has
// disconnected.
func TestCanceledDownloadsAreLogged(t *testing.T) {
	t.Parallel()
	logged := func(errs ...error) string {
		var log bytes.Buffer
		d := &dashboard{Deps: Deps{Logger: slog.New(slog.NewJSONHandler(&log, nil))}}
		require.PanicsWithValue(t, http.ErrAbortHandler, func() { _ = d.endFile(errors.Join(errs...), "it failed") })
		return log.String()
	}
	line := logged(tenants.ErrExportUnread, tenants.ErrExportEnds)
	require.Contains(t, line, "another tenant waits for its place")
	require.Contains(t, line, `"level":"INFO"`)
	require.Empty(t, logged(tenants.ErrExportUnread, errors.New("broken pipe")))
	require.Contains(t, logged(errors.New("of the database")), "it failed")
}
