package tests

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
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

// metered asks an instance for the metered units of each subject, by rule, and for the gaps.
func (c *client) metered(i *instance, since time.Time) (units map[string]int64, gaps int) {
	c.t.Helper()
	var report struct {
		Gaps []struct {
			ClosedAt *string `json:"closed_at"`
		}
		Items []struct {
			Subject, Rule string
			Units         int64
		}
	}
	got := c.do(http.MethodGet, i.URL()+"/v1/usage/metered?open=true&grain=period&limit=200&from="+since.Format(time.RFC3339), "", http.StatusOK)
	require.NoError(c.t, json.Unmarshal(got.body, &report))
	units = map[string]int64{}
	for _, item := range report.Items {
		units[item.Rule+" "+item.Subject] += item.Units
	}
	for _, gap := range report.Gaps {
		if gap.ClosedAt == nil {
			gaps++
		}
	}
	return units, gaps
}

// Invoices have every unit of every subject, to the unit, whatever happens to Postgres and to the
// instances. Only an instance that is killed takes its last second with it, and the export says so.
func TestMeteringAddsUp(t *testing.T) {
	s := newSettings(t)
	steady := start(t, s).AwaitReady()
	tenant := newTenant(t, s, steady)
	u, err := url.Parse(s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	door := newDoor(t, u.Host)
	door.open()
	u.Host = door.addr
	shaky := start(t, s.With(settings{"WEIR_DATABASE_URL": u.String()})).AwaitReady()
	for slug, more := range map[string]string{"strict": "", "leased": `,"consistency":"leased"`} {
		tenant.putRule(slug, fmt.Sprintf(`{"resource":%q,"algorithm":"fixed_window","limit":1000000,"window":"1h","metering":"units"%s}`, slug, more), steady, shaky)
	}

	since := time.Now().UTC().Truncate(time.Hour)
	want := map[string]int64{}
	ask := func(n int, i *instance) (asked int64) {
		for k := range n {
			subject, cost := fmt.Sprint("customer ", k%7), int64(k%3)
			rule := []string{"strict", "leased"}[k%2]
			one := fmt.Sprintf(`{"subject":%q,"resource":%q,"cost":%d}`, subject, rule, cost)
			switch k % 5 {
			case 0: // two of a batch
				tenant.do(http.MethodPost, i.URL()+"/v1/check/batch", `{"checks":[`+one+`,`+one+`]}`, http.StatusOK)
				want[rule+" "+subject] += cost
				asked += cost
			case 1: // what changes nothing is not metered
				tenant.do(http.MethodPost, i.URL()+"/v1/check", fmt.Sprintf(`{"subject":%q,"resource":%q,"dry_run":true}`, subject, rule), http.StatusOK)
				fallthrough
			default:
				tenant.do(http.MethodPost, i.URL()+"/v1/check", one, http.StatusOK)
			}
			want[rule+" "+subject] += cost
			asked += cost
		}
		for key := range want {
			if want[key] == 0 {
				delete(want, key)
			}
		}
		return asked
	}
	arrives := func(why string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) {
			got, _ := tenant.metered(steady, since)
			assert.Equal(c, want, got)
		}, patience, tick, why)
	}
	ask(60, steady)
	ask(60, shaky)
	arrives("metered units do not arrive")

	door.close()
	ask(60, shaky)
	shaky.AwaitLog("metered units cannot be written and are kept in memory")
	ask(60, shaky)
	door.open()
	arrives("what was metered while Postgres was unavailable is lost or counted twice")

	ask(60, shaky)
	require.Zero(t, shaky.Stop())
	got, gaps := tenant.metered(steady, since)
	require.Equal(t, want, got, "an instance that stops writes what it has")
	require.Zero(t, gaps)

	killed := start(t, s).AwaitReady()
	ask(60, killed)
	arrives("metered units do not arrive")
	last := ask(60, killed)
	killed.Signal(syscall.SIGKILL)
	killed.Exit()
	got, _ = tenant.metered(steady, since)
	missing := int64(0)
	for key, units := range want {
		require.LessOrEqual(t, got[key], units, key)
		missing += units - got[key]
	}
	require.LessOrEqual(t, missing, last, "only the last second is missing")
	want = got

	// A minute later it is given up. An instance that lives writes again, and closes its gap.
	db, err := pgx.Connect(t.Context(), s["WEIR_DATABASE_URL"])
	require.NoError(t, err)
	_, err = db.Exec(t.Context(), "UPDATE metering_state SET waits_from = now() - interval '1 hour'; UPDATE metering_writers SET written_at = now() - interval '2 minutes'")
	require.NoError(t, err)
	require.NoError(t, db.Close(t.Context()))
	require.Eventually(t, func() bool { _, gaps := tenant.metered(steady, since); return gaps == 1 }, patience, tick, "the gap is not reported")
	ask(60, steady)
	arrives("the others continue")
}
