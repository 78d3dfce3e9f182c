package tests

import (
	"encoding/json"
	"net/http"
	"net/url"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// usage returns the number of the tenant's checks in the last day, as an instance reports it.
func (c *client) usage(i *instance) (checks int) {
	c.t.Helper()
	var report struct {
		Items []struct{ Allowed, Denied int }
	}
	got := c.do(http.MethodGet, i.URL()+"/v1/usage?grain=day", "", http.StatusOK)
	require.NoError(c.t, json.Unmarshal(got.body, &report))
	for _, item := range report.Items {
		checks += item.Allowed + item.Denied
	}
	return checks
}

// Usage counts each check exactly once, even if Postgres or instances fail. Only a killed instance
// loses its last second.
func TestUsageAddsUp(t *testing.T) {
	s := newSettings(t)
	steady := start(t, s).AwaitReady()
	tenant := newTenant(t, s, steady)
	u, err := url.Parse(s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	door := newDoor(t, u.Host)
	door.open()
	u.Host = door.addr
	shaky := start(t, s.With(settings{"WEIR_DATABASE_URL": u.String()})).AwaitReady()

	asked := 0
	ask := func(n int, i *instance) {
		for k := range n {
			body := `{"subject":"user_42","resource":"api"}`
			if k%5 == 0 { // checks that consume nothing are not usage
				tenant.do(http.MethodPost, i.URL()+"/v1/check", `{"subject":"user_42","dry_run":true}`, http.StatusOK)
			}
			tenant.do(http.MethodPost, i.URL()+"/v1/check", body, http.StatusOK)
			asked++
		}
	}
	arrives := func(why string) {
		t.Helper()
		require.Eventually(t, func() bool { return tenant.usage(steady) == asked }, patience, tick, why)
	}
	ask(20, steady)
	ask(20, shaky)
	arrives("usage does not arrive")

	door.close()
	ask(20, shaky)
	shaky.AwaitLog("usage cannot be written and is buffered")
	ask(20, shaky)
	require.Equal(t, asked-40, tenant.usage(steady))
	door.open()
	arrives("usage from while Postgres was unavailable is lost or counted twice")

	ask(20, shaky)
	require.Zero(t, shaky.Stop())
	require.Equal(t, asked, tenant.usage(steady), "an instance stores its usage before it stops")

	killed := start(t, s).AwaitReady()
	ask(20, killed)
	arrives("usage does not arrive")
	ask(20, killed)
	killed.Signal(syscall.SIGKILL)
	killed.Exit()
	got := tenant.usage(steady)
	require.GreaterOrEqual(t, got, asked-20)
	require.LessOrEqual(t, got, asked)
	ask(20, steady)
	require.Eventually(t, func() bool { return tenant.usage(steady) == got+20 }, patience, tick, "the others continue")
}
