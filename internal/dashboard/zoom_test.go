package dashboard

import (
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A link leads back from a zoomed chart to the period from which somebody zoomed, also after
// zooming twice, and keeps what else the address chooses.
func TestZoomLeadsBack(t *testing.T) {
	t.Parallel()
	values := func(text string) url.Values {
		t.Helper()
		v, err := url.ParseQuery(text)
		require.NoError(t, err)
		return v
	}
	for _, from := range []string{"period=7d&by=rule&scale=log", "period=custom&from=2026-01-01T00:00&to=2026-01-08T00:00", "period=custom&from=2026-01-01T00:00", "period=1h&grain=minute"} {
		start := values(from)
		require.Empty(t, unzoomedAddress(start), from)
		zoomed := zoomParameters(start)
		zoomed.Set("from", "2026-01-02T00:00")
		zoomed.Set("to", "2026-01-03T00:00")
		twice := zoomParameters(zoomed)
		twice.Set("from", "2026-01-02T10:00")
		twice.Set("to", "2026-01-02T11:00")
		start.Del("grain") // the one of the whole period would be too coarse for a part
		require.Equal(t, start, unzoomed(zoomed), from)
		require.Equal(t, start, unzoomed(twice), from)
		require.Empty(t, withBounds(twice, "", "").Get(zoomedFrom), "another period was not zoomed into")
	}
}

// The chart of a tenant zooms within the tenant's page.
func TestTenantZoom(t *testing.T) {
	s := newOperated(t)
	from := url.QueryEscape(s.clock.Now().Add(-3 * time.Hour).UTC().Format(minuteForm))
	got := s.olga.get("/tenants/tenant-a?period=custom&full=7d&from=" + from)
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, `href="/tenants/tenant-a?period=7d">Reset zoom`)
	require.Contains(t, got.body, `data-zoom="/tenants/tenant-a?full=7d&amp;period=custom"`)
	require.Contains(t, s.olga.get("/tenants/tenant-a?scale=log").body, `href="/tenants/tenant-a?period=24h">Linear scale`)
	require.Equal(t, http.StatusBadRequest, s.olga.get("/tenants/tenant-a?period=custom").status)
}

// The labels of marks do not cover each other.
func TestMarkLabels(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := chart{stretch: stretch{From: start, To: start.Add(100 * time.Minute)}}
	for _, x := range []int{5, 30, 35, 40, 95} {
		c.Marks = append(c.Marks, chartMark{At: start.Add(time.Duration(x) * time.Minute)})
	}
	require.Equal(t, []string{"start", "", "", "start", "end"}, c.MarkLabels())
}
