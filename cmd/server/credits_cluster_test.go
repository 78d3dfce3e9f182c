package main

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/engine"
	redisengine "weir/internal/engine/redis"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
	"weir/internal/testenv"
)

// askedOf is an engine that counts the openings that a server is sent.
type askedOf struct {
	*redisengine.Engine
	server engine.Server
	times  int
}

func (a *askedOf) OpenCredits(ctx context.Context, openings ...*engine.Opening) (int, error) {
	for _, o := range openings {
		if a.ServerOf(o.Key) == a.server {
			a.times++
			break
		}
	}
	return a.Engine.OpenCredits(ctx, openings...)
}

// While a master of a Cluster is frozen, new credits on others are opened, of a tenant with
// partitions on both, although the frozen one has more and older ones than a round opens. Each
// round waits for it once, however many tenants have credits there.
func TestNewCreditsBehindAFrozenMaster(t *testing.T) {
	cluster := testenv.StartCluster(t, 2, 0, time.Hour)
	client, err := redisengine.NewClient(cluster.URL)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	counters := &askedOf{Engine: redisengine.New(client, redisengine.Options{})}
	require.Eventually(t, func() bool { return len(counters.All(t.Context())) == 2 }, time.Minute, time.Millisecond)

	d := tenantstest.New(t)
	keys := check.NewKeys(uuid.New())
	k := newCreditKeeper(d.Store, keys, counters, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	var frozen *testenv.Redis
	const here, there = 60, 5 // subjects of a tenant on the frozen master and on the other one
	for _, slug := range []string{"acme", "umbrella"} {
		f := &creditFleet{t: t, d: d}
		f.a, _ = d.Tenant(slug)
		f.rule("api", 100)
		d.Exec("UPDATE tenants SET partitions = 64 WHERE id = $1", f.a.TenantID())
		var late []string
		for n, early := 0, 0; early < here || len(late) < there; n++ {
			subject := fmt.Sprint("s", n)
			key := keys.CreditsKey(f.a.TenantID(), 64, subject, "api")
			if counters.server == nil {
				counters.server, frozen = counters.ServerOf(key), cluster.MasterOf(key)
			}
			if counters.ServerOf(key) != counters.server {
				late = append(late, subject)
			} else if early < here {
				early++
				newCredits(f, subject)
			}
		}
		for _, subject := range late[:there] {
			newCredits(f, subject)
		}
	}
	sweep := func(opened int) {
		t.Helper()
		for range 500 { // on a slow machine, the other one may not answer in time, either
			asked := counters.times
			done, next, err := d.Store.SweepCredits(t.Context(), keys, counters, k.swept)
			if frozen != nil {
				require.ErrorIs(t, err, check.ErrCountersUnavailable)
				require.LessOrEqual(t, counters.times, asked+1)
			}
			k.swept = next
			if opened -= done.Opened; opened <= 0 {
				break
			}
		}
		require.Zero(t, opened)
	}
	frozen.Pause()
	sweep(2 * there)
	frozen.Resume()
	frozen = nil
	sweep(2 * here)
}

func newCredits(f *creditFleet, subject string) {
	f.t.Helper()
	_, _, err := f.d.Store.GrantCredits(f.t.Context(), f.a, subject, tenants.NewCredits{Rule: "api", Units: 10})
	require.NoError(f.t, err)
}
