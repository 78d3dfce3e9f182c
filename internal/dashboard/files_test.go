package dashboard

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
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

// A customer who closes the page while it is read is no fault of the service.
func TestCustomerThatDisconnected(t *testing.T) {
	s := newStack(t)
	var log bytes.Buffer
	s.pages.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	logged := func(ctx context.Context) string {
		log.Reset()
		r := httptest.NewRequestWithContext(context.WithValue(ctx, trackedKey{}, &tracked{}), http.MethodGet, "/portal", nil)
		s.pages.portalFailure(httptest.NewRecorder(), r, nil, errors.New("the database failed"))
		return log.String()
	}
	require.Contains(t, logged(t.Context()), `"level":"ERROR"`)
	gone, leave := context.WithCancel(t.Context())
	leave()
	require.Contains(t, logged(gone), `"level":"INFO"`)
}
