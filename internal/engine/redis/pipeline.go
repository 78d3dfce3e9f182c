package redis

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
	"weir/internal/limit"
)

// pipeline has the commands of one round trip: runs of evaluate_many.lua, each for many calls, and
// runs of evaluate_one.lua, each for one call. It is reused.
type pipeline struct {
	engine *Engine
	server *server
	mode   mode
	scope  scope
	cmds   []*scriptCmd
	runs   []*manyRun // of this pipeline
	spare  []*manyRun
	pipe   []redis.Cmder
}

// scriptCmd is one run of a script.
type scriptCmd struct {
	cmd    *redis.StringCmd
	script *script
	args   []any
	text   bool      // sent as text, not by its hash
	run    *manyRun  // if it is a run of evaluate_many.lua
	call   *sentCall // if it is a run of evaluate_one.lua: the call
}

// build creates the command, with the hash of the script, or with its text if the server may not
// know it.
func (c *scriptCmd) build(text bool) {
	c.text = text
	if text {
		c.args[0], c.args[1] = "eval", c.script.text
		c.script.sent.Store(true)
	} else {
		c.args[0], c.args[1] = "evalsha", c.script.sha
	}
	c.cmd = redis.NewStringCmd(context.Background(), c.args...)
}

// scope is which calls one run of evaluate_many.lua may decide.
type scope int

const (
	scopeServer scope = iota // all: the store is one server
	scopeNode                // all of one node of a Cluster; the keys are not declared
	scopeSlot                // those whose keys have the same tag
	scopeCall                // a single one
)

// begin prepares the pipeline for calls to a server.
func (p *pipeline) begin(s *server, m mode) {
	p.server, p.mode = s, m
	switch {
	case p.engine.cluster == nil:
		p.scope = scopeServer
	case m == single || m == alone:
		p.scope = scopeCall
	case s.across.known():
		p.scope = scopeNode
	default:
		p.scope = scopeSlot
	}
}

// load adds requests. The calls of each request stay in order. Calls of different requests are
// concurrent, so any order of them is correct, and most of them share one run.
func (p *pipeline) load(reqs []*request) {
	for _, r := range reqs {
		after := -1 // the command after which the request's next call must be
		bounded := false
		for i := range r.calls {
			if is := r.calls[i].spare != nil; is != bounded { // it has another run
				after, bounded = len(p.cmds)-1, is
			}
			if c := &r.calls[i]; c.compact {
				run := p.runFor(r, c, after)
				run.add(r, i)
				if p.mode == alone {
					run.cmd.args = declareOthers(run.cmd.args, r.countersOf(c))
				}
			} else {
				p.addOne(r, c)
				after = len(p.cmds) - 1
			}
		}
	}
	for _, cmd := range p.cmds {
		if cmd.run != nil {
			cmd.run.finishArgs(cmd)
		}
		cmd.build(!cmd.script.sent.Load())
	}
}

// runFor returns the run for a call.
func (p *pipeline) runFor(r *request, c *sentCall, after int) *manyRun {
	tag, bounded := "", c.spare != nil
	if (p.scope == scopeSlot || bounded && p.engine.cluster != nil) && c.count > 0 {
		tag = engine.HashTag(r.counters[c.first].Key)
	}
	for i := len(p.runs) - 1; i >= 0 && p.scope != scopeCall; i-- {
		if run := p.runs[i]; run.tag == tag && run.bounded == bounded {
			if run.place > after && run.fits(c) {
				return run
			}
			break
		}
	}
	var run *manyRun
	if last := len(p.spare) - 1; last >= 0 {
		run, p.spare = p.spare[last], p.spare[:last]
	} else {
		run = new(manyRun)
	}
	run.begin(tag, p.scope == scopeNode && !bounded, len(p.cmds))
	run.bounded = bounded
	run.cmd.script, run.cmd.run = p.engine.many, run
	switch {
	case bounded:
		run.cmd.script = p.engine.manySpare
	case run.node:
		run.cmd.script = p.engine.manyOfNode
	}
	p.runs = append(p.runs, run)
	p.cmds = append(p.cmds, &run.cmd)
	return run
}

// addOne adds a run of evaluate_one.lua.
func (p *pipeline) addOne(r *request, c *sentCall) {
	counters := r.countersOf(c)
	args := make([]any, 3, 4+2*len(counters))
	for i := range counters {
		key := counters[i].OwnKey()
		args = append(args, key)
		if counters[i].Numbers.PenaltyMS > 0 {
			args = append(args, penaltyKey(key))
		}
		if credits := counters[i].Credits; credits != nil && engine.CreditsAt(counters, i) == i {
			args = append(args, credits.Key, credits.Outbox)
		}
	}
	if p.mode == alone {
		args = declareOthers(args, counters)
	}
	script := p.engine.scripts.of(c.algorithms)
	if c.spare != nil {
		script, args = p.engine.spares.of(c.algorithms), c.spare.appendKeys(args)
	}
	args[2] = len(args) - 3
	if p.mode == asking && p.scope == scopeNode {
		script, args[2] = p.engine.asked.of(c.algorithms), 0
	}
	counterArg, boundsArg := c.encode(nil, p.server.lostMS.Load(), counters)
	args = append(args, counterArg, boundsArg)
	if c.spare != nil {
		args = append(args, c.spare.counts)
	}
	p.cmds = append(p.cmds, &scriptCmd{script: script, args: args, call: c})
}

// declareOthers adds the other keys under which counters may be stored, which a script reads if it
// does not find them. It reads no other keys than these and those of the call.
func declareOthers(args []any, counters []engine.Counter) []any {
	for i := range counters {
		switch counters[i].Numbers.Algorithm {
		case limit.SlidingWindowCounter, limit.FixedWindow, limit.FixedWindowFirstHit:
			if other := counters[i].OtherKey(); other != "" {
				args = append(args, other)
			}
		}
	}
	return args
}

// maxTrips is the maximum number of round trips of one pipeline. Until the slot map of a Cluster
// was read, a command may have to follow two redirections, and the last server may not know the
// script.
const maxTrips = 4

// run sends the commands in one pipeline and waits for the replies. A command that was not executed
// is sent again: as text, if the server does not know its script; to another server, if its slot
// has moved and the slot map was not read yet. Nothing else is retried here: see redirect.go.
//
// Calls of one request stay in order, except if the server forgets some of its scripts while it
// processes them.
func (p *pipeline) run(ctx context.Context) {
	p.pipe = p.pipe[:0]
	for _, c := range p.cmds {
		p.pipe = append(p.pipe, c.cmd)
		if c.text {
			p.engine.loads.Add(1)
		}
	}
	search := p.engine.cluster != nil && p.server.first
	p.roundTrip(ctx, search)
	for range maxTrips - 1 {
		p.pipe = p.pipe[:0]
		for _, c := range p.cmds {
			switch err := c.cmd.Err(); {
			case err == nil:
			case !c.text && strings.HasPrefix(err.Error(), "NOSCRIPT"):
				p.engine.loads.Add(1)
				c.build(true)
				p.pipe = append(p.pipe, c.cmd)
			case search && redirected(err):
				c.build(c.text)
				p.pipe = append(p.pipe, c.cmd)
			}
		}
		if len(p.pipe) == 0 {
			return
		}
		p.roundTrip(ctx, search)
	}
}

// redirected reports whether a server refused a command because the slot of its keys is, or will
// be, another's.
func redirected(err error) bool {
	text := err.Error()
	return strings.HasPrefix(text, "MOVED ") || strings.HasPrefix(text, "ASK ")
}

// roundTrip sends the commands and waits for the replies: to the pipeline's server, or search
// finds the server of each.
func (p *pipeline) roundTrip(ctx context.Context, search bool) {
	if search {
		p.search(ctx)
		return
	}
	if len(p.pipe) == 1 && p.mode != asking {
		_ = p.server.client.Process(ctx, p.pipe[0]) // the error is the command's
		return
	}
	pipe := p.server.client.Pipeline()
	for _, cmd := range p.pipe {
		if p.mode == asking {
			_ = pipe.Process(ctx, redis.NewStatusCmd(ctx, "asking"))
		}
		_ = pipe.Process(ctx, cmd)
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
}

// search sends the commands through the client of the Cluster, which follows redirections.
func (p *pipeline) search(ctx context.Context) {
	pipe := p.engine.cluster.Pipeline()
	sent := make([]onceCmd, len(p.pipe))
	for i, cmd := range p.pipe {
		args := cmd.Args()
		spelled := make([]any, len(args))
		for j, arg := range args {
			if key, ok := arg.(*string); ok { // the client cannot tell the slot of a key behind a pointer
				arg = *key
			}
			spelled[j] = arg
		}
		sent[i] = onceCmd{redis.NewStringCmd(ctx, spelled...)}
		_ = pipe.Process(ctx, sent[i])
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
	for i, cmd := range p.pipe {
		reply, err := sent[i].Result()
		own := cmd.(*redis.StringCmd)
		own.SetVal(reply)
		own.SetErr(err)
	}
}

// onceCmd is a command that the client of a Cluster sends again only where it is redirected: a
// script whose reply was lost may have run.
type onceCmd struct{ *redis.StringCmd }

// NoRetry implements redis.Cmder.
func (onceCmd) NoRetry() bool { return true }

// deliver passes the replies to the requests, and reports whether the last command was answered.
func (p *pipeline) deliver() (answered bool) {
	for _, c := range p.cmds {
		err := c.cmd.Err()
		answered = err == nil
		if c.run != nil {
			if c.run.node && err != nil && p.server.across.refuses(err) {
				p.server.across.state.Store(acrossUnknown) // it is tried again
			}
			p.engine.repaired.Add(c.run.deliver(c.cmd.Val(), err))
			continue
		}
		switch {
		case err == nil:
			c.call.reply = c.cmd.Val()
			if c.call.spare != nil {
				c.call.reply, c.call.diverted = c.call.spare.cut(c.call.reply)
			}
		case strings.Contains(err.Error(), "non local key"): // evaluate_one.lua reads all keys before it writes
			c.call.err = errNotServed
		default:
			c.call.err = err
		}
	}
	return answered
}

func (p *pipeline) reset() {
	for _, run := range p.runs {
		run.reset()
	}
	p.spare = append(p.spare, p.runs...)
	clear(p.runs)
	clear(p.cmds)
	clear(p.pipe)
	p.server = nil
	p.runs, p.cmds, p.pipe = p.runs[:0], p.cmds[:0], p.pipe[:0]
}
