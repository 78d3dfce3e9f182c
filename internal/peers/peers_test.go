package peers

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/testenv"
)

// Instances that stop publishing still count for a while, because they may only be slow.
func TestPeers(t *testing.T) {
	p := New(1, nil, prometheus.NewRegistry())
	now := time.Now()
	for _, id := range []string{"a", "b", "c"} {
		p.observe(id, now)
	}
	require.Equal(t, 4, p.Count())
	p.alone(now, now.Add(9*time.Minute))
	require.Equal(t, 4, p.Count(), "instances that stopped publishing still count for ten minutes")
	p.alone(now.Add(9*time.Minute), now.Add(11*time.Minute))
	require.Equal(t, 1, p.Count())
}

// alone lets an instance receive its own name only, every second.
func (p *Peers) alone(from, to time.Time) {
	for at := from; !at.After(to); at = at.Add(heartbeatEvery) {
		p.observe(p.id, at)
		p.echo(at)
	}
}

// In an outage of Redis, an instance does not learn how many others there are. If it forgot them,
// each instance would allow the whole limit. They count until Redis has passed on names again for
// as long as without an outage.
func TestPeersOutliveEveryOutage(t *testing.T) {
	now := time.Now()
	for _, outage := range []time.Duration{11 * time.Minute, 3 * time.Hour} {
		p := New(1, nil, prometheus.NewRegistry())
		for _, id := range []string{"a", "b", "c"} {
			p.observe(id, now)
		}
		p.alone(now, now.Add(4*time.Minute))
		before, end := p.Share(), now.Add(4*time.Minute+outage)
		require.Equal(t, int64(4), before.Count)
		for at := now.Add(4 * time.Minute); !at.After(end); at = at.Add(heartbeatEvery) {
			p.observe(p.id, at)
			require.Equal(t, before, p.Share(), at.Sub(now))
		}
		p.alone(end, end.Add(6*time.Minute))
		require.Equal(t, before, p.Share(), "%v, and not yet ten minutes with echoes", outage)
		p.alone(end.Add(6*time.Minute), end.Add(6*time.Minute+2*heartbeatLost))
		require.Equal(t, 1, p.Count(), outage)
	}
}

// In an outage, no instance receives the names of the others. Each instance must keep its own part
// of the remainder. Otherwise a limit of 4 is 6 for three instances, and a limit of 50 is 51.
func TestPlacesOutliveTheOutage(t *testing.T) {
	now := time.Now()
	instances := []*Peers{New(1, nil, prometheus.NewRegistry()), New(1, nil, prometheus.NewRegistry()), New(1, nil, prometheus.NewRegistry())}
	sum := func(limit int64) (sum int64) {
		for _, p := range instances {
			sum += p.Share().Of(limit)
		}
		return sum
	}
	for _, p := range instances {
		for _, other := range instances {
			p.observe(other.id, now)
		}
	}
	for _, limit := range []int64{3, 4, 50, 100} {
		require.Equal(t, limit, sum(limit))
	}
	for _, p := range instances {
		p.observe(p.id, now.Add(2*heartbeatLost))
		require.Equal(t, 3, p.Count())
	}
	for _, limit := range []int64{3, 4, 50, 100} {
		require.Equal(t, limit, sum(limit), "after the others stopped publishing")
	}
}

// The list of live instances is certain only while Redis passes on this instance's own name.
func TestAlive(t *testing.T) {
	p, other := New(1, nil, prometheus.NewRegistry()), New(1, nil, prometheus.NewRegistry())
	now := time.Now()
	p.observe(other.id, now)
	certain := func(at time.Duration) bool {
		_, certain := p.aliveAt(now.Add(at))
		return certain
	}
	require.False(t, certain(0))
	for at := time.Duration(0); at <= 2*heartbeatLost; at += heartbeatEvery {
		p.echo(now.Add(at))
		require.Equal(t, at == 2*heartbeatLost, certain(at), at)
	}
	ids, _ := p.aliveAt(now)
	require.ElementsMatch(t, []uuid.UUID{p.UUID(), other.UUID()}, ids)
	ids, _ = p.aliveAt(now.Add(heartbeatLost + time.Second))
	require.Empty(t, ids)

	require.False(t, certain(4*heartbeatLost), "a pause")
	p.echo(now.Add(4 * heartbeatLost))
	require.False(t, certain(4*heartbeatLost), "the pause was too short ago")
}

// An instance does not know its place if it knows no other instance, or if it started after the
// peak. It must not use a part of the remainder that another instance may use too.
func TestUnknownPlacesTakeNoRemainder(t *testing.T) {
	now := time.Now()
	alone := New(3, nil, prometheus.NewRegistry())
	require.Equal(t, int64(1), alone.Share().Of(4))
	require.Equal(t, int64(16), alone.Share().Of(50))

	late := New(1, nil, prometheus.NewRegistry())
	late.mu.Lock()
	late.most = []peak{{[]string{"a", "b", "c"}, now}}
	late.mu.Unlock()
	late.observe(late.id, now)
	require.Equal(t, 3, late.Count())
	require.Equal(t, int64(1), late.Share().Of(4))
	require.Equal(t, int64(16), late.Share().Of(50))
}

// Deployments that share a Redis do not count each other's instances: limits would be divided by
// too many, and lists of decisions would wait for answers that never come. Instances of an older
// version, which publish a UUID, count.
func TestDeploymentsThatShareRedis(t *testing.T) {
	t.Parallel()
	client := testenv.RedisClient(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	t.Cleanup(stop)
	start := func(secret string) *Peers {
		p := New(1, []byte(secret), prometheus.NewRegistry())
		running.Go(func() { p.Run(ctx, client, slog.New(slog.DiscardHandler)) })
		return p
	}
	sub := client.Subscribe(ctx, peersChannel)
	t.Cleanup(func() { _ = sub.Close() })
	first, second, foreign := start("deployment 1"), start("deployment 1"), start("deployment 2")
	for {
		m, err := sub.ReceiveMessage(ctx)
		require.NoError(t, err)
		if m.Payload == foreign.id {
			break
		}
	}
	published := time.Now()
	for _, pair := range [][2]*Peers{{first, second}, {second, first}} { // what came later than the foreign name is there
		require.Eventually(t, func() bool { return pair[0].heardAt(pair[1].id).After(published) }, time.Minute, time.Millisecond)
		require.Zero(t, pair[0].heardAt(foreign.id))
		require.Equal(t, 1, pair[0].Others())
	}
	require.True(t, first.ours(uuid.NewString()))
}

// heardAt returns when p last received a name.
func (p *Peers) heardAt(id string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heard[id]
}
