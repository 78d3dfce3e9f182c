package redis

import (
	"context"
	"encoding/binary"
	"math"
	"strings"

	"github.com/redis/go-redis/v9"

	"weir/internal/engine"
	"weir/internal/limit"
)

// flight is what one pipeline carries: runs of hot.lua, each for many calls, and runs of main.lua,
// each for one. It is used again and again.
type pipeline struct {
	engine *Engine
	cmds   []*scriptCmd
	runs   []*hotRun // of this flight
	spare  []*hotRun
	pipe   []redis.Cmder
}

// scriptCmd is one run of a script.
type scriptCmd struct {
	cmd    *redis.StringCmd
	script *script
	args   []any
	text   bool      // sent as text, not by its hash
	run    *hotRun   // that it is, of hot.lua
	call   *sentCall // that it decides, of main.lua
}

// build makes the command, by its hash, or with the script's text where the server may not know it.
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

// load takes requests on. The calls of each stay in order; those of different requests were asked at
// once, so any order of them is right, and most of them share one run.
func (f *pipeline) load(reqs []*request) {
	for _, r := range reqs {
		after := -1 // the command behind which the request's next call must be
		for i := range r.calls {
			if c := &r.calls[i]; c.hot {
				f.runFor(r, c, after).add(r, i)
			} else {
				f.addMain(r, c)
				after = len(f.cmds) - 1
			}
		}
	}
	for _, cmd := range f.cmds {
		if cmd.run != nil {
			cmd.run.finishArgs(cmd)
		}
		cmd.build(!cmd.script.sent.Load())
	}
}

// runFor returns the run that takes a call on. In a Cluster the keys of one run must share a slot.
func (f *pipeline) runFor(r *request, c *sentCall, after int) *hotRun {
	tag := ""
	if f.engine.cluster && c.count > 0 {
		tag = engine.HashTag(r.counters[c.first].Key)
	}
	for i := len(f.runs) - 1; i >= 0; i-- {
		if run := f.runs[i]; run.tag == tag {
			if run.place > after && run.fits(c) {
				return run
			}
			break
		}
	}
	var run *hotRun
	if last := len(f.spare) - 1; last >= 0 {
		run, f.spare = f.spare[last], f.spare[:last]
	} else {
		run = new(hotRun)
	}
	run.begin(tag, len(f.cmds))
	run.cmd.script, run.cmd.run = f.engine.hot, run
	f.runs = append(f.runs, run)
	f.cmds = append(f.cmds, &run.cmd)
	return run
}

// addMain adds a run of main.lua.
func (f *pipeline) addMain(r *request, c *sentCall) {
	counters := r.countersOf(c)
	args := make([]any, 3, 4+2*len(counters))
	for i := range counters {
		key := counters[i].OwnKey()
		args = append(args, key)
		if counters[i].Numbers.PenaltyMS > 0 {
			args = append(args, penaltyKey(key))
		}
	}
	args[2] = len(args) - 3
	args = append(args, c.encode(nil, counters))
	f.cmds = append(f.cmds, &scriptCmd{script: f.engine.scripts.of(c.algorithms), args: args, call: c})
}

// fly sends the commands in one pipeline and waits for the replies. A script that the server does not
// know is sent once more, as text; nothing else is repeated.
//
// Calls of one request stay in order, except where the server forgets some of its scripts while
// it works through them.
func (f *pipeline) fly(ctx context.Context) {
	f.pipe = f.pipe[:0]
	for _, c := range f.cmds {
		f.pipe = append(f.pipe, c.cmd)
	}
	f.roundTrip(ctx)
	f.pipe = f.pipe[:0]
	for _, c := range f.cmds {
		if c.text {
			f.engine.loads.Add(1)
		} else if err := c.cmd.Err(); err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
			f.engine.loads.Add(1)
			c.build(true)
			f.pipe = append(f.pipe, c.cmd)
		}
	}
	if len(f.pipe) > 0 {
		f.roundTrip(ctx)
	}
}

func (f *pipeline) roundTrip(ctx context.Context) {
	if len(f.pipe) == 1 {
		_ = f.engine.client.Process(ctx, f.pipe[0]) // the error is the command's
		return
	}
	pipe := f.engine.client.Pipeline()
	for _, cmd := range f.pipe {
		_ = pipe.Process(ctx, cmd)
	}
	_, _ = pipe.Exec(ctx) // every command has its own error
}

// deliver hands the replies to the requests, and reports whether the last command was answered.
func (f *pipeline) deliver() (answered bool) {
	for _, c := range f.cmds {
		err := c.cmd.Err()
		answered = err == nil
		if c.run != nil {
			f.engine.repaired.Add(c.run.deliver(c.cmd.Val(), err))
			continue
		}
		if c.call.err = err; err == nil {
			c.call.reply = c.cmd.Val()
		}
	}
	return answered
}

func (f *pipeline) reset() {
	for _, run := range f.runs {
		run.reset()
	}
	f.spare = append(f.spare, f.runs...)
	clear(f.runs)
	clear(f.cmds)
	clear(f.pipe)
	f.runs, f.cmds, f.pipe = f.runs[:0], f.cmds[:0], f.pipe[:0]
}

// hotRun is one run of hot.lua: calls of many requests, equal ones put together.
type hotRun struct {
	cmd      scriptCmd
	tag      string // of the keys, in a Cluster
	place    int    // among the commands of the flight
	work     int
	rules    []hotRule
	hint     int // where the next rule is likely to be found: rules come in the same order again and again
	sets     []hotSet
	rulesArg []byte
	callsArg []byte
	setsArg  []byte
	groups   []hotGroup
	members  []hotMember
	slots    [256]uint16 // the last group whose first key hashes so, counted from 1
}

type hotRule struct {
	numbers limit.Numbers
	id      string
	shadow  bool
}

// hotSet is the rules of a group.
type hotSet struct {
	signature uint64
	count     int
}

// hotGroup is calls of different requests, or next to each other in one, that ask the very same.
type hotGroup struct {
	r       *request
	call    *sentCall
	at      int // of its calls in callsArg
	times   int
	reply   string
	allowed int64
}

type hotMember struct {
	r           *request
	call        int
	group, turn int
}

const (
	hotGiven         = 1 // flags of a call
	hotDryRun        = 2
	maxHotRules      = 255 // counted in a byte, as groups are
	maxHotTimes      = 255
	maxRunWork       = 512 // for so long nobody else is served
	hotRuleLookahead = 32
)

func (h *hotRun) begin(tag string, place int) {
	h.tag, h.place = tag, place
	if cap(h.cmd.args) == 0 {
		h.cmd.args = make([]any, 0, 16)
	}
	h.cmd.args = append(h.cmd.args[:0], nil, nil, nil)
}

func (h *hotRun) reset() {
	clear(h.cmd.args)
	clear(h.groups)
	clear(h.members)
	h.cmd.cmd = nil
	h.work, h.hint = 0, 0
	clear(h.rules)
	h.rules, h.sets = h.rules[:0], h.sets[:0]
	h.rulesArg, h.callsArg, h.setsArg = h.rulesArg[:0], h.callsArg[:0], h.setsArg[:0]
	h.groups, h.members = h.groups[:0], h.members[:0]
	h.slots = [256]uint16{}
}

// work is about how much a call is to do for Redis; a counter by itself is 1. Those of a group
// mostly are that together.
func (s *sentCall) work() int { return s.width + (s.count-s.width)/4 }

// fits reports whether the run can take on another call.
func (h *hotRun) fits(c *sentCall) bool {
	return len(h.rules)+c.count <= maxHotRules && len(h.sets)+c.width <= maxHotRules && (h.work == 0 || h.work+c.work() <= maxRunWork)
}

// add takes on call i of a request.
func (h *hotRun) add(r *request, i int) {
	c := &r.calls[i]
	counters := r.countersOf(c)
	slot := hotSlot(counters)
	// A request's only call was asked at once with all others of the flight and may be put to an
	// equal one anywhere; one of several must stay behind those before it.
	group := len(h.groups) - 1
	if len(r.calls) == 1 {
		group = int(h.slots[slot]) - 1
	}
	if group >= 0 && h.groups[group].equal(c, counters) {
		g := &h.groups[group]
		h.members = append(h.members, hotMember{r: r, call: i, group: group, turn: g.times})
		g.times++
		h.callsArg[g.at+2]++
		return
	}
	h.groups = append(h.groups, hotGroup{r: r, call: c, at: len(h.callsArg), times: 1})
	h.members = append(h.members, hotMember{r: r, call: i, group: len(h.groups) - 1})
	h.slots[slot] = uint16(len(h.groups))
	h.work += c.work()
	flags := byte(0)
	if c.cost != 1 || c.nowMS != 0 {
		flags |= hotGiven
	}
	if c.dryRun {
		flags |= hotDryRun
	}
	h.callsArg = append(h.callsArg, flags, byte(c.width), 1)
	entries := r.entriesOf(c)
	for j := range entries {
		e := &entries[j]
		first := &counters[r.order[e.from]]
		if e.grouped {
			h.callsArg = append(h.callsArg, 0, h.set(e, counters, r.order[e.from:e.from+e.count]))
		} else {
			h.callsArg = append(h.callsArg, h.rule(first))
		}
		h.cmd.args = append(h.cmd.args, &first.Key)
	}
	if flags&hotGiven != 0 {
		h.callsArg = appendUint(appendUint(h.callsArg, c.cost, 7), c.nowMS, 6)
	}
}

// hotSlot is a hash of the first key, which ends in a hash.
func hotSlot(counters []engine.Counter) byte {
	if len(counters) == 0 || len(counters[0].Key) < 2 {
		return 0
	}
	key := counters[0].Key
	return key[len(key)-1] + 31*key[len(key)-2]
}

// equal reports whether a call asks the same as those of the group, and can be one of them.
func (g *hotGroup) equal(c *sentCall, counters []engine.Counter) bool {
	if g.times == maxHotTimes || g.call.count != c.count || g.call.cost != c.cost || g.call.nowMS != c.nowMS || g.call.dryRun || c.dryRun {
		return false
	}
	for i, same := range g.r.countersOf(g.call) {
		if same != counters[i] {
			return false
		}
	}
	return true
}

// rule returns the number, from 1, of a counter's rule in the run.
func (h *hotRun) rule(c *engine.Counter) byte {
	for i := range min(len(h.rules), hotRuleLookahead) {
		at := (h.hint + i) % len(h.rules)
		if r := &h.rules[at]; r.shadow == c.Shadow && r.id == c.ID && r.numbers == c.Numbers {
			h.hint = at + 1
			return byte(at + 1)
		}
	}
	h.rules = append(h.rules, hotRule{c.Numbers, c.ID, c.Shadow})
	n := &c.Numbers
	b := append(h.rulesArg, byte(n.Algorithm), oneIf(c.Shadow))
	b = appendUint(b, n.Limit, 7)
	b = appendUint(b, n.WindowMS, 5)
	b = appendUint(b, extra(n), 5)
	h.rulesArg = appendID(append(b, byte(n.Calendar)), c.ID)
	h.hint = len(h.rules)
	return byte(len(h.rules))
}

// set returns the number, from 1, of a group's rules in the run.
func (h *hotRun) set(e *hotEntry, counters []engine.Counter, order []int32) byte {
	for i := range h.sets {
		if h.sets[i].signature == e.signature && h.sets[i].count == e.count {
			return byte(i + 1)
		}
	}
	h.sets = append(h.sets, hotSet{e.signature, e.count})
	h.setsArg = append(h.setsArg, byte(e.count))
	h.setsArg = binary.LittleEndian.AppendUint64(h.setsArg, e.signature)
	for _, i := range order {
		h.setsArg = append(h.setsArg, h.rule(&counters[i]))
	}
	return byte(len(h.sets))
}

func (h *hotRun) finishArgs(c *scriptCmd) {
	c.args[2] = len(c.args) - 3
	c.args = append(c.args, h.rulesArg, h.callsArg, h.setsArg)
}

// deliver hands the reply to the requests and returns how many foreign values were repaired.
func (h *hotRun) deliver(reply string, err error) (repaired int64) {
	if err == nil {
		err = h.locate(reply)
	}
	if err != nil {
		for i := range h.members {
			h.members[i].r.calls[h.members[i].call].err = err
		}
		return 0
	}
	clock := readUint(reply[:6])
	for i := range h.members {
		m := &h.members[i]
		g, c := &h.groups[m.group], &m.r.calls[m.call]
		c.decidedMS = c.nowMS
		if c.nowMS == 0 {
			c.decidedMS = clock
		}
		c.allowed, c.turn, c.reply = g.allowed, int64(m.turn), g.reply
	}
	return readUint(reply[6:hotHeadBytes])
}

// locate finds the groups' parts of the reply. One that is not of the right form, whatever it is, is
// errReply.
func (h *hotRun) locate(reply string) error {
	if len(reply) < hotHeadBytes || readUint(reply[:6]) > limit.MaxInstantMS {
		return errReply
	}
	rest := reply[hotHeadBytes:]
	for i := range h.groups {
		g := &h.groups[i]
		length := 1
		entries := g.r.entriesOf(g.call)
		for j := range entries {
			length += entries[j].replyBytes()
		}
		if length > len(rest) || int(rest[0]) > g.times {
			return errReply
		}
		g.allowed, g.reply, rest = int64(rest[0]), rest[1:length], rest[length:]
	}
	if rest != "" {
		return errReply
	}
	return nil
}

// extra is the number of an algorithm besides limit and window that the scripts get.
func extra(n *limit.Numbers) int64 {
	switch {
	case n.Algorithm.Bucket():
		return n.Burst
	case n.Algorithm == limit.SlidingWindowCounter:
		return counterBase(n.WindowMS)
	}
	return n.PrecisionMS
}

// counterBase is the number below which the two counts of a sliding window counter are stored
// together with the number of the window as one number below 2^53 (lua/counter_value.lua), until
// the year 2109: 1431 for a window of a second, 11 085 for a minute, 85 869 for an hour. It is part
// of the format of what is stored.
func counterBase(windowMS int64) int64 {
	const last = 1 << 42 // ms since 1970
	return int64(math.Sqrt(float64(1<<53) / float64(last/windowMS+2)))
}
