package recent

import (
	"bytes"
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

	replyingAtOnce = 2    // requests of other instances that are answered at the same time
	mostReplies    = 1024 // requests of other instances that wait for their answer
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
	open   map[uint64]chan []byte
	looked map[limit.TenantID]time.Time // when a page of a tenant last asked, on any instance
	shared map[sharedKey]*shared
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

// gather sends a request to the other instances, and returns their answers within recentWait. Large
// answers are decoded here and not by Run, so that those of one tenant hold up no other.
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
	answers := make(chan []byte, others+1)
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
		case content := <-answers:
			var a recentAnswer
			if json.Unmarshal(content, &a) != nil {
				continue
			}
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

// Run answers the other instances and receives their answers, until ctx ends. It only distributes
// messages. Tenants take turns in answering, so that one with many requests holds up no other.
func (r *Log) Run(ctx context.Context, client redis.UniversalClient, log *slog.Logger) {
	mine := recentChannel + ":" + r.peers.ID()
	sub := client.Subscribe(ctx, recentChannel, mine)
	defer func() { _ = sub.Close() }()
	var replies sync.WaitGroup
	defer replies.Wait()
	r.ask.mu.Lock()
	r.ask.client, r.ask.open = client, map[uint64]chan []byte{}
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
				r.receive(ctx, client, content, &replies)
			}
		}
	}
}

// hear passes an answer to the request that waits for it.
func (r *Log) hear(content []byte) {
	id, ok := answerID(content)
	if !ok {
		return
	}
	r.ask.mu.Lock()
	waiting := r.ask.open[id]
	r.ask.mu.Unlock()
	if waiting == nil {
		return // too late
	}
	select {
	case waiting <- content:
	default: // more answers than instances
	}
}

// answerID returns the ID of an answer, which is its first field, without reading the rest.
func answerID(content []byte) (id uint64, ok bool) {
	d := json.NewDecoder(bytes.NewReader(content))
	for _, want := range []json.Token{json.Delim('{'), "ID"} {
		if got, err := d.Token(); err != nil || got != want {
			return 0, false
		}
	}
	return id, d.Decode(&id) == nil
}

// receive answers a request of another instance when it is the turn of its tenant. The requesting
// instance waits for recentWait only, so a request that is older gets no answer.
func (r *Log) receive(ctx context.Context, client redis.UniversalClient, content []byte, replies *sync.WaitGroup) {
	var req recentRequest
	if json.Unmarshal(content, &req) != nil || req.From == r.peers.ID() {
		return
	}
	r.look(req.Tenant)
	came := r.clock()
	replies.Go(func() {
		if r.turns.Take(ctx, req.Tenant) != nil {
			return
		}
		defer r.turns.Leave()
		if r.clock().Sub(came) <= recentWait {
			r.reply(ctx, client, &req)
		}
	})
}

// reply answers another instance. If the reply is lost, nothing is retried.
func (r *Log) reply(ctx context.Context, client redis.UniversalClient, req *recentRequest) {
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
	message, err := encode(a)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recentWait)
	defer cancel()
	_ = client.Publish(ctx, recentChannel+":"+req.From, r.aead.Seal(nil, nil, message, nil)).Err()
}

// encode returns an answer as JSON. HTML is not escaped: a list of names of "<" would have six
// times the size, and exceed recentMessage.
func encode(a recentAnswer) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	err := e.Encode(a)
	return out.Bytes(), err
}

// messagesAEAD encrypts messages between the instances of one deployment, and detects forged ones.
func messagesAEAD(keys check.Keys) cipher.AEAD {
	return seal.AEAD([sha256.Size]byte(keys.Derive("weir recent decisions")))
}
