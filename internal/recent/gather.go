package recent

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/check"
	"weir/internal/limit"
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
	if client.Publish(ctx, recentChannel, r.seal.close(message)).Err() != nil {
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
			content, err := r.seal.open(m.Payload)
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
	_ = client.Publish(ctx, recentChannel+":"+req.From, r.seal.close(message)).Err()
}

// seal encrypts messages between the instances of one deployment, and detects forged ones.
type seal struct{ aead cipher.AEAD }

func newSeal(keys check.Keys) seal {
	// The sizes are constants, so none of these calls fails.
	block, err := aes.NewCipher(keys.Derive("weir recent decisions"))
	if err != nil {
		panic("recent: " + err.Error())
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		panic("recent: " + err.Error())
	}
	return seal{aead}
}

func (s seal) close(message []byte) []byte {
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(message)+s.aead.Overhead())
	_, _ = rand.Read(nonce) // never fails: the runtime aborts instead
	return s.aead.Seal(nonce, nonce, message, nil)
}

var errSealed = errors.New("not encrypted by an instance of this deployment")

func (s seal) open(payload string) ([]byte, error) {
	size := s.aead.NonceSize()
	if len(payload) < size || len(payload) > recentMessage {
		return nil, errSealed
	}
	content, err := s.aead.Open(nil, []byte(payload[:size]), []byte(payload[size:]), nil)
	if err != nil {
		return nil, errSealed
	}
	return content, nil
}
