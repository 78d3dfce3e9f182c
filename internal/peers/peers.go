package peers

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
)

// peersChannel is the channel on which every instance publishes its name. It is a channel and not a
// key, so the database contains only counters.
const peersChannel = "w1:instances"

const (
	heartbeatEvery = time.Second
	heartbeatLost  = 5 * time.Second
	peersMemory    = 10 * time.Minute
)

// Peers knows the number of instances of the service, from which each instance computes its share
// of a limit while Redis is unavailable. It uses the maximum of the last ten minutes in which it
// received its own name, so a failing Redis cannot reduce the number, however long it fails.
type Peers struct {
	id         string
	deployment string // the first part of id
	least      int
	instances  prometheus.Gauge
	share      atomic.Pointer[engine.Share]

	mu    sync.Mutex
	heard map[string]time.Time
	// When this instance received its own name, last and for the first time without a pause.
	echoed, echoes time.Time
	most           []peak // of the last ten minutes with echoes: counts fall, times rise
}

// peak has the names of the instances that were alive at one instant, sorted. Each instance keeps
// its place in the list when the instances no longer receive each other's names. Without a place,
// all instances would have the same share.
type peak struct {
	ids []string
	at  time.Time
}

// New returns a Peers that assumes least live instances until it discovers more. Only instances
// with the same secret count, so deployments that share a Redis do not divide each other's limits.
func New(least int, secret []byte, reg prometheus.Registerer) *Peers {
	deployment := deploymentMark(secret)
	p := &Peers{
		id: deployment + uuid.NewString(), deployment: deployment, least: max(least, 1), heard: map[string]time.Time{},
		instances: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_instances", Help: "Live instances of the service; local shares of limits are divided by it.",
		}),
	}
	reg.MustRegister(p.instances)
	p.observe(p.id, time.Now())
	return p
}

// Count returns how many instances share the limits now.
func (p *Peers) Count() int { return int(p.share.Load().Count) }

// ID returns the name of this instance.
func (p *Peers) ID() string { return p.id }

// UUID returns the second part of the name of this instance.
func (p *Peers) UUID() uuid.UUID { return uuidOf(p.id) }

// uuidOf returns the UUID at the end of a name; uuid.Nil: it has none.
func uuidOf(name string) uuid.UUID {
	id, _ := uuid.Parse(name[max(0, len(name)-len(uuid.Nil.String())):])
	return id
}

// Alive returns the instances whose names this one received within the last five seconds. The list
// is certain if this instance has received its own name without a pause for twice as long: then an
// instance that is not in the list does not run, or cannot reach Redis.
func (p *Peers) Alive() (ids []uuid.UUID, certain bool) {
	return p.aliveAt(time.Now())
}

func (p *Peers) aliveAt(now time.Time) (ids []uuid.UUID, certain bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, at := range p.heard {
		if id := uuidOf(name); id != uuid.Nil && now.Sub(at) <= heartbeatLost {
			ids = append(ids, id)
		}
	}
	return ids, !p.deaf(now) && now.Sub(p.echoes) >= 2*heartbeatLost
}

// echo notes that this instance has received its own name.
func (p *Peers) echo(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.deaf(now) {
		p.echoes = now
		silent := now.Sub(p.echoed)
		for i := range p.most { // they continue to age from here
			p.most[i].at = earlier(p.most[i].at.Add(silent), now)
		}
	}
	p.echoed = now
}

// deaf reports whether this instance does not receive its own name. Then it does not receive those
// of the others either, so it learns nothing of how many there are.
func (p *Peers) deaf(now time.Time) bool { return now.Sub(p.echoed) > heartbeatLost }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// Share returns this instance's part of every limit.
func (p *Peers) Share() engine.Share { return *p.share.Load() }

// Others returns how many other instances are alive.
func (p *Peers) Others() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, at := range p.heard {
		if id != p.id && time.Since(at) <= heartbeatLost {
			n++
		}
	}
	return n
}

// Run publishes this instance's name every second and receives the names of the others, until ctx
// ends.
func (p *Peers) Run(ctx context.Context, client redis.UniversalClient, log *slog.Logger) {
	sub := client.Subscribe(ctx, peersChannel)
	defer func() { _ = sub.Close() }()
	messages := sub.Channel()
	tick := time.NewTicker(heartbeatEvery)
	defer tick.Stop()
	publish := func() {
		callCtx, cancel := context.WithTimeout(ctx, heartbeatEvery)
		defer cancel()
		if err := client.Publish(callCtx, peersChannel, p.id).Err(); err != nil {
			log.Debug("heartbeat was not sent", "error", err)
		}
	}
	publish()
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			now := time.Now()
			if p.ours(m.Payload) {
				p.observe(m.Payload, now)
			}
			if m.Payload == p.id {
				p.echo(now)
			}
		case now := <-tick.C:
			publish()
			p.observe(p.id, now)
		}
	}
}

// deploymentMark returns the first part of the names of all instances with this secret: eight
// digits and a hyphen.
func deploymentMark(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("instances"))
	return hex.EncodeToString(mac.Sum(nil)[:4]) + "-"
}

// ours reports whether an instance of this deployment has the name. Names of older versions are
// UUIDs and count too, so that limits stay divided while instances are replaced one by one.
func (p *Peers) ours(id string) bool {
	return strings.HasPrefix(id, p.deployment) || len(id) == len(uuid.Nil.String())
}

// maxPeers limits the size of the table, in case other programs use the channel.
const maxPeers = 10_000

func (p *Peers) observe(id string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.heard[id]; known || len(p.heard) < maxPeers && len(id) <= 64 {
		p.heard[id] = now
	}
	ids := make([]string, 0, len(p.heard))
	for other, at := range p.heard {
		if now.Sub(at) > heartbeatLost && other != p.id {
			delete(p.heard, other)
			continue
		}
		ids = append(ids, other)
	}
	slices.Sort(ids)
	for len(p.most) > 0 && len(p.most[len(p.most)-1].ids) <= len(ids) {
		p.most = p.most[:len(p.most)-1]
	}
	p.most = append(p.most, peak{ids, now})
	for !p.deaf(now) && now.Sub(p.most[0].at) > peersMemory {
		p.most = p.most[1:]
	}
	ids = p.most[0].ids
	count := max(len(ids), p.least)
	p.share.Store(&engine.Share{Count: int64(count), Rank: int64(p.rank(ids, count))})
	p.instances.Set(float64(count))
}

// rank returns the place of this instance among count. The remainder of a division goes to the
// first places. An instance that does not know its place therefore takes a late one: two instances
// with the same place would both use the same unit.
func (p *Peers) rank(ids []string, count int) int {
	place, known := slices.BinarySearch(ids, p.id)
	if !known {
		return count - 1
	}
	return count - len(ids) + place
}
