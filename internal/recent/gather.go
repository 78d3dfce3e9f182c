package recent

import (
	"context"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/seal"
)

// recentChannel is the channel on which an instance requests the decisions of one tenant from all
// others. They answer on a channel with that name and the id of the requesting instance. Nothing is
// sent while nobody looks at a page, and nothing is stored. Messages are encrypted, so Redis
// contains no customer data, and a client that has only the password of Redis cannot forge a
// decision.
const recentChannel = "w1:recent"

const (
	recentWait    = 250 * time.Millisecond // for the others' answers
	recentMost    = recentDenied + recentAllowed
	recentMessage = 1 << 20 // bytes: a larger message is not from Weir
)

// List has the decisions of instances.
type List struct {
	Decisions []Decision  // newest first
	Near      []NearLimit // most used first
	// Instances is the number of live instances, including this one. Answered is the number of
	// those that contributed to the list.
	Instances, Answered int

	instances []Instance       // the others, if requested
	watched   []*watchedAnswer // of the others, if requested; nil: one that does not count the subject
}

type recentRequest struct {
	ID     uint64
	From   string
	Tenant limit.TenantID
	Near   bool // whether subjects near a limit are requested
	// Instances requests only the state of the instance, and nothing of a tenant.
	Instances bool `json:",omitempty"`
	// Watch requests only the counts of this subject, and keeps them.
	Watch string `json:",omitempty"`
	Query Query
}

type recentAnswer struct {
	ID        uint64
	Decisions []Decision     `json:",omitempty"`
	Near      []NearLimit    `json:",omitempty"`
	Instance  *Instance      `json:",omitempty"` // nil also from a version that does not have it
	Watched   *watchedAnswer `json:",omitempty"` // nil if too many subjects are watched
}

// asking has the requests of this instance to the others.
type asking struct {
	mu     sync.Mutex
	client redis.UniversalClient // nil while Run does not run
	open   map[uint64]chan recentAnswer
	looked map[limit.TenantID]time.Time // when a page of a tenant last asked, on any instance
}

// lookedFor is how long a tenant counts as looked at after a page has asked.
const lookedFor = 10 * time.Second

// Looked returns the tenants at which somebody looks: those for which a page of the dashboard, of
// any instance, has asked in the last ten seconds.
func (r *Log) Looked() (tenants []limit.TenantID) {
	now := r.clock()
	r.ask.mu.Lock()
	defer r.ask.mu.Unlock()
	for tenant, at := range r.ask.looked {
		if now.Sub(at) > lookedFor {
			delete(r.ask.looked, tenant)
			continue
		}
		tenants = append(tenants, tenant)
	}
	return tenants
}

// look notes that somebody looks at a tenant.
func (r *Log) look(tenant limit.TenantID) {
	if tenant == (limit.TenantID{}) {
		return // a request for the state of instances
	}
	now := r.clock()
	r.ask.mu.Lock()
	defer r.ask.mu.Unlock()
	if r.ask.looked == nil {
		r.ask.looked = map[limit.TenantID]time.Time{}
	}
	r.ask.looked[tenant] = now
}

// List returns recent decisions of a tenant, from all instances that answer in time. It never
// fails: if Redis is unavailable, and before Run, it returns those of this instance.
func (r *Log) List(ctx context.Context, tenant limit.TenantID, q Query) List {
	if q.Most <= 0 || q.Most > recentMost {
		q.Most = recentMost
	}
	out := r.gather(ctx, recentRequest{Tenant: tenant, Query: q})
	out.Decisions = newestFirst(append(out.Decisions, r.list(tenant, q)...), q.Most)
	return out
}

// Near returns subjects that were near a limit and may still be, from all instances that answer in
// time. The list contains only what these instances saw, and each entry has its own time.
func (r *Log) Near(ctx context.Context, tenant limit.TenantID, most int) List {
	out := r.gather(ctx, recentRequest{Tenant: tenant, Near: true})
	out.Near = mostUsedFirst(append(out.Near, r.near(tenant)...), most)
	return out
}

// gather sends a request to the other instances, and returns their answers within recentWait.
func (r *Log) gather(ctx context.Context, req recentRequest) (out List) {
	r.look(req.Tenant)
	others := r.peers.Others()
	out.Instances, out.Answered = others+1, 1
	r.ask.mu.Lock()
	client := r.ask.client
	r.ask.mu.Unlock()
	if others == 0 || client == nil {
		return out
	}
	req.ID, req.From = mathrand.Uint64(), r.peers.ID()
	message, err := json.Marshal(req)
	if err != nil {
		return out
	}
	answers := make(chan recentAnswer, others+1)
	r.ask.mu.Lock()
	r.ask.open[req.ID] = answers
	r.ask.mu.Unlock()
	defer func() {
		r.ask.mu.Lock()
		delete(r.ask.open, req.ID)
		r.ask.mu.Unlock()
	}()
	ctx, cancel := context.WithTimeout(ctx, recentWait)
	defer cancel()
	if client.Publish(ctx, recentChannel, r.aead.Seal(nil, nil, message, nil)).Err() != nil {
		return out
	}
	for out.Answered < out.Instances {
		select {
		case a := <-answers:
			out.Decisions, out.Near = append(out.Decisions, a.Decisions...), append(out.Near, a.Near...)
			if req.Watch != "" {
				out.watched = append(out.watched, a.Watched)
			}
			if a.Instance != nil {
				out.instances = append(out.instances, *a.Instance)
			}
			out.Answered++
		case <-ctx.Done():
			return out
		}
	}
	return out
}

// Run answers the other instances and receives their answers, until ctx ends.
func (r *Log) Run(ctx context.Context, client redis.UniversalClient, log *slog.Logger) {
	mine := recentChannel + ":" + r.peers.ID()
	sub := client.Subscribe(ctx, recentChannel, mine)
	defer func() { _ = sub.Close() }()
	r.ask.mu.Lock()
	r.ask.client, r.ask.open = client, map[uint64]chan recentAnswer{}
	r.ask.mu.Unlock()
	messages := sub.Channel()
	for {
		select {
		case <-ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			if len(m.Payload) > recentMessage {
				continue
			}
			content, err := r.aead.Open(nil, nil, []byte(m.Payload), nil)
			switch {
			case err != nil:
				log.Debug("cannot decrypt a message about recent decisions", "error", err)
			case m.Channel == mine:
				r.hear(content)
			default:
				r.reply(ctx, client, content)
			}
		}
	}
}

// hear passes an answer to the request that waits for it.
func (r *Log) hear(content []byte) {
	var a recentAnswer
	if json.Unmarshal(content, &a) != nil {
		return
	}
	r.ask.mu.Lock()
	waiting := r.ask.open[a.ID]
	r.ask.mu.Unlock()
	if waiting == nil {
		return // too late
	}
	select {
	case waiting <- a:
	default: // more answers than instances
	}
}

// reply answers another instance. If the reply is lost, nothing is retried.
func (r *Log) reply(ctx context.Context, client redis.UniversalClient, content []byte) {
	var req recentRequest
	if json.Unmarshal(content, &req) != nil || req.From == r.peers.ID() {
		return
	}
	r.look(req.Tenant)
	a := recentAnswer{ID: req.ID}
	switch {
	case req.Instances:
		instance := r.self()
		a.Instance = &instance
	case req.Watch != "":
		a.Watched = r.watch(req.Tenant, req.Watch)
	case req.Near:
		a.Near = r.near(req.Tenant)
	default:
		a.Decisions = r.list(req.Tenant, req.Query)
	}
	message, err := json.Marshal(a)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recentWait)
	defer cancel()
	_ = client.Publish(ctx, recentChannel+":"+req.From, r.aead.Seal(nil, nil, message, nil)).Err()
}

// messagesAEAD encrypts messages between the instances of one deployment, and detects forged ones.
func messagesAEAD(keys check.Keys) cipher.AEAD {
	return seal.AEAD([sha256.Size]byte(keys.Derive("weir recent decisions")))
}
