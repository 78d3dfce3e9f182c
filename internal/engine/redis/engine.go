package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v4"
	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
	"weir/internal/limit"
)

// Options are the settings of an Engine. Zero values select the defaults.
type Options struct {
	// Deadline is how long one Evaluate waits for a silent store, including its time in the queue.
	// If the store answers other calls in the meantime, Evaluate waits up to four times as long.
	// Default 50 ms.
	Deadline time.Duration
	// MaxBatch is the maximum number of calls in a shared pipeline. Default 128. An Evaluate with
	// more calls than that is still sent in one pipeline.
	MaxBatch int
	// Pipelines is the number of shared pipelines that can be in flight at the same time. Default
	// 2.
	Pipelines int
	// Census bounds the counters of each tenant; nil: nothing does.
	Census *Census
	// Refunds is the client for refunds, which do not wait in the queue of checks, so that checks
	// do not wait for a connection because of them. nil: the client of checks.
	Refunds redis.UniversalClient
}

// Engine is an engine.Engine whose counters all instances share. A script decides a call at one
// instant of Redis's clock. If possible, one run of the script decides many calls. The calls of one
// Evaluate are in one pipeline. An Engine is safe for concurrent use and needs no Close; the caller
// owns the client.
type Engine struct {
	client     redis.UniversalClient
	options    Options
	deadline   time.Duration
	cluster    *redis.ClusterClient // nil: one server
	mapped     atomic.Bool          // the slot map of the Cluster was read
	reading    atomic.Bool          // it is being read
	servers    *xsync.Map[*redis.Client, *server]
	first      *server
	scripts    scripts
	asked      scripts                     // for slots that are being moved to a node
	guests     *xsync.Map[string, *server] // by address: servers that were redirected to and are not in the slot map
	many       *script
	manySpare  *script // for bounded calls
	spares     scripts // for bounded calls
	census     *Census
	manyOfNode *script
	refund     *script
	forget     *script
	amend      *script
	open       *script
	settle     *script
	shut       *script
	requests   sync.Pool // *request
	pipelines  sync.Pool // *pipeline
	repaired   atomic.Int64
	loads      atomic.Int64
	redirects  atomic.Int64
}

// New returns an engine that uses client, which NewClient returns.
func New(client redis.UniversalClient, o Options) *Engine {
	if o.Deadline == 0 {
		o.Deadline = 50 * time.Millisecond
	}
	if o.MaxBatch == 0 {
		o.MaxBatch = 128
	}
	if o.Pipelines == 0 {
		o.Pipelines = 2
	}
	if o.Refunds == nil {
		o.Refunds = client
	}
	e := &Engine{
		client: client, options: o, deadline: o.Deadline, servers: xsync.NewMap[*redis.Client, *server](), guests: xsync.NewMap[string, *server](),
		many:       newScript("prelude", "fixed_value", "counter_value", "group", "evaluate_many"),
		manyOfNode: newNodeScript("prelude", "node", "fixed_value", "counter_value", "group", "evaluate_many"),
		refund:     newScript("prelude", "fixed_value", "counter_value", "group", "ratio", "refund"),
		forget:     newScript("prelude", "fixed_value", "counter_value", "group", "forget"),
		amend:      newScript(amendFiles()...),
		open:       newScript("prelude", "credits", "opened_credits", "open_credits"),
		shut:       newScript("prelude", "credits", "opened_credits", "close_credits"),
		settle:     newScript("prelude", "settle_credits"),
	}
	e.cluster, _ = client.(*redis.ClusterClient)
	e.asked.node = true
	e.spares.spare, e.census = true, o.Census
	e.manySpare = newScript("prelude", "spare", "fixed_value", "counter_value", "group", "evaluate_many")
	e.requests.New = func() any { return newRequest() }
	e.pipelines.New = func() any { return &pipeline{engine: e} }
	e.first = e.newServer(client, true)
	return e
}

// Repaired returns how many counters had an invalid value (unreadable, out of range, or in some
// cases of another type) that was overwritten.
func (e *Engine) Repaired() int64 { return e.repaired.Load() }

// ScriptLoads returns how many times a script was sent as text, because it was new or because Redis
// had forgotten it.
func (e *Engine) ScriptLoads() int64 { return e.loads.Load() }

// Redirects returns how many calls and refunds a server of a Cluster did not decide, because it
// does not, or may not, hold their counters.
func (e *Engine) Redirects() int64 { return e.redirects.Load() }

var (
	errReply = errors.New("unexpected script reply from Redis")
	errStale = errors.New("the calendar windows of the call do not contain the time of Redis, after one retry")
)

// Evaluate decides the calls in order, all in one round trip. A call that is answered before the
// deadline or the end of ctx has its outcome. Any other call has an Err, and may have been counted.
// The end of ctx does not cancel a pipeline in flight, because other requests may share it.
//
// If the calendar windows of a call are not those of Redis's time, Redis refuses it and counts
// nothing. The call gets the windows of the time that Redis returned, and is evaluated once more,
// after the others.
func (e *Engine) Evaluate(ctx context.Context, calls ...*engine.Call) {
	if e.cluster == nil {
		e.EvaluateOn(ctx, e.first, calls...)
		return
	}
	for len(calls) > 0 {
		server, same, others := engine.SplitByServer(e, calls)
		e.EvaluateOn(ctx, server, same...)
		calls = others
	}
}

// EvaluateOn implements engine.Servers.
func (e *Engine) EvaluateOn(ctx context.Context, on engine.Server, calls ...*engine.Call) {
	s := on.(*server)
	e.evaluate(ctx, s, calls)
	var again []*engine.Call
	for _, c := range calls {
		if errors.Is(c.Err, errStale) {
			for i := range c.Counters {
				if n := &c.Counters[i].Numbers; n.Bounds != nil && !n.Bounds.Contain(c.Outcome.NowMS) {
					n.Bounds = n.Bounds.Around(c.Outcome.NowMS)
				}
			}
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		e.evaluate(ctx, s, again)
	}
}

// evaluate evaluates calls whose counters are on one server, and follows those that have moved.
func (e *Engine) evaluate(ctx context.Context, s *server, calls []*engine.Call) {
	e.send(ctx, s, together, calls)
	if e.cluster != nil {
		e.follow(ctx, s, calls)
	}
}

// send sends calls to one server and waits for the answers. Calls with much work are sent in parts,
// one after the other, because Redis serves nothing else while it processes one.
func (e *Engine) send(ctx context.Context, s *server, m mode, calls []*engine.Call) {
	for len(calls) > 0 {
		r := e.requests.Get().(*request)
		part := r.fill(calls)
		err := e.sendPart(ctx, s, m, r, calls[:part])
		if calls = calls[part:]; err != nil { // the server would not answer the others either
			for _, c := range calls {
				c.Err = notReached{err}
			}
			return
		}
	}
}

// fill adds the first calls, until a pipeline has enough work, and returns their number. Invalid
// ones get an Err instead.
func (r *request) fill(calls []*engine.Call) int {
	for i, c := range calls {
		if c.Err = c.Validate(); c.Err != nil {
			continue
		}
		if r.add(c); r.work >= maxBatchWork {
			return i + 1
		}
	}
	return len(calls)
}

// sendPart sends the request of calls. An error is also that of each of them.
func (e *Engine) sendPart(ctx context.Context, s *server, m mode, r *request, calls []*engine.Call) error {
	if e.census != nil {
		e.census.reserveAll(r, calls, m)
	}
	if len(r.calls) == 0 {
		e.requests.Put(r)
		return nil
	}
	if err := s.queues[m].send(ctx, r); err != nil {
		// r is not reused, because another goroutine may still be sending it.
		err = fmt.Errorf("evaluate counters: %w", err)
		for _, c := range calls {
			if c.Err == nil {
				c.Err = err
			}
		}
		if e.census != nil {
			e.census.forfeit(r)
		}
		return err
	}
	next := 0
	for _, c := range calls {
		if c.Err == nil {
			s := &r.calls[next]
			e.take(c, r, s)
			if e.census != nil {
				e.census.settle(c, s)
			}
			next++
		}
	}
	r.reset()
	e.requests.Put(r)
	return nil
}

// take copies the result of a call from its request.
func (e *Engine) take(c *engine.Call, r *request, s *sentCall) {
	err := s.err
	switch {
	case err != nil:
		c.Outcome.NowMS = s.decidedMS // with errStale
	case s.compact:
		err = r.verdicts(c, s)
	default:
		var repaired int64
		if repaired, err = decodeReply(c, s.reply); repaired > 0 {
			e.repaired.Add(repaired)
		}
	}
	if err != nil {
		if errors.Is(err, redis.ErrPoolTimeout) {
			err = notReached{poolTimeout{err}}
		}
		c.Err = fmt.Errorf("evaluate counters: %w", err)
	}
}

// The layout of ARGV and of the reply is defined in lua/evaluate_one.lua.
const (
	headReplyBytes    = 7
	counterReplyBytes = 31

	flagAdmits   = 1
	flagExceeds  = 2
	flagPenalty  = 4
	flagRepaired = 8
	flagUnopened = 16
	flagsKnown   = 31

	creditsReplyBytes = 14

	oneStale = 2 // instead of allowed

	flagOverage = 2 // of a counter, beside shadow
	flagCredits = 4
	flagShares  = 8 // beside flagCredits: the credits are those of an earlier counter

	// maxScriptCost represents every cost above all quotas with all credits. The script represents
	// it exactly.
	maxScriptCost = 1<<53 - 1
)

// encode appends the argument of evaluate_one.lua for a call. lostMS is when the server is known to
// have lost data, 0 for never. The second result has the bounds of
// its calendar windows and, from the end, the limits of counters with overage.
func (c *sentCall) encode(b []byte, lostMS int64, counters []engine.Counter) (args, more []byte) {
	var bounds, limits []byte
	b = appendUint(b, c.nowMS, 6)
	b = append(b, oneIf(c.dryRun))
	for i := range counters {
		n, cost := &counters[i].Numbers, c.cost
		if c.perCounter {
			cost = min(counters[i].Cost, maxScriptCost)
		}
		flags := oneIf(counters[i].Shadow)
		if n.Overage {
			flags |= flagOverage
			limits = append(appendUint(nil, n.Limit, 7), limits...)
		}
		credits, creditsAt := counters[i].Credits, i
		if credits != nil {
			flags |= flagCredits
			if creditsAt = engine.CreditsAt(counters, i); creditsAt < i {
				flags |= flagShares
			}
		}
		b = append(b, byte(n.Algorithm), flags)
		b = appendUint(b, cost, 7)
		b = appendUint(b, n.Enforced(), 7)
		b = appendUint(b, n.WindowMS, 5)
		b = appendUint(b, extra(n), 5)
		b = appendUint(b, n.PenaltyMS, 4)
		place := byte(0)
		if n.Bounds != nil {
			bounds = appendBounds(bounds, n.Bounds)
			place = byte(len(bounds) / boundsBytes)
		}
		b = appendID(append(b, place), counters[i].ID)
		switch {
		case creditsAt < i:
			b = appendUint(b, int64(creditsAt)+1, 2)
		case credits != nil:
			b = appendGrants(b, lostMS, credits.Grants)
		}
	}
	return b, append(bounds, limits...)
}

const boundsBytes = 18

func appendBounds(b []byte, bounds *limit.Bounds) []byte {
	return appendUint(appendUint(appendUint(b, bounds.StartMS, 6), bounds.EndMS, 6), bounds.NextEndMS, 6)
}

// appendID appends the ID of a rule, or zeros for none.
func appendID(b []byte, id string) []byte {
	if id == "" {
		id = noID
	}
	return append(b, id...)
}

const noID = "\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func oneIf(yes bool) byte {
	if yes {
		return 1
	}
	return 0
}

func appendUint(b []byte, v int64, bytes int) []byte {
	for range bytes {
		b = append(b, byte(v))
		v >>= 8
	}
	return b
}

func readUint(s string) (v int64) {
	for i := len(s) - 1; i >= 0; i-- {
		v = v<<8 | int64(s[i])
	}
	return v
}
