package redis

import (
	"encoding/binary"
	"math"

	"weir/internal/engine"
	"weir/internal/limit"
)

// manyRun is one run of evaluate_many.lua: calls of many requests, with equal calls in groups.
type manyRun struct {
	cmd      scriptCmd
	tag      string // of the keys, in a run for one slot of a Cluster
	node     bool   // for keys of all slots of a node
	bounded  bool   // of bounded calls
	spare    spareKeys
	place    int // index in the commands of the pipeline
	work     int
	rules    []runRule
	hint     int // where the next rule probably is: rules usually come in the same order
	sets     []ruleSet
	rulesArg []byte
	callsArg []byte
	setsArg  []byte
	// boundsArg are the calendar windows of rules.
	boundsArg []byte
	// spansArg has the numbers of consecutive keys with the same tag, in a run for a node.
	spansArg []byte
	spanTag  string
	groups   []equalCalls
	members  []member
	slots    [256]uint16 // by hash: the last group whose first key has it, counted from 1
}

type runRule struct {
	numbers limit.Numbers
	id      string
	shadow  bool
}

// ruleSet has the rules of a group.
type ruleSet struct {
	signature, bounds uint64
	count             int
}

// equalCalls are equal calls: of different requests, or consecutive calls of one request.
type equalCalls struct {
	r       *request
	call    *sentCall
	at      int // of its calls in callsArg
	times   int
	reply   string
	allowed int64
	keyAt   int    // index of its first key in the run
	marks   string // of a bounded call: which of its keys were replaced
}

type member struct {
	r           *request
	call        int
	group, turn int
}

const (
	flagGiven     = 1 // flags of a call
	flagDryRun    = 2
	maxRunRules   = 255 // counted in one byte, like groups
	maxEqualCalls = 253
	manyStale     = 255 // instead of the number of allowed calls
	manyNotServed = 254 // the same: the server does not serve a key of the call
	maxRunWork    = 512 // Redis serves nothing else during a run
	ruleLookahead = 32
)

func (h *manyRun) begin(tag string, node bool, place int) {
	h.tag, h.node, h.place = tag, node, place
	if cap(h.cmd.args) == 0 {
		h.cmd.args = make([]any, 0, 16)
	}
	h.cmd.args = append(h.cmd.args[:0], nil, nil, nil)
}

func (h *manyRun) reset() {
	clear(h.cmd.args)
	clear(h.groups)
	clear(h.members)
	h.cmd.cmd = nil
	h.work, h.hint, h.spanTag = 0, 0, ""
	clear(h.rules)
	h.rules, h.sets = h.rules[:0], h.sets[:0]
	h.rulesArg, h.callsArg, h.setsArg, h.boundsArg = h.rulesArg[:0], h.callsArg[:0], h.setsArg[:0], h.boundsArg[:0]
	h.spansArg = h.spansArg[:0]
	h.bounded, h.spare = false, spareKeys{}
	h.groups, h.members = h.groups[:0], h.members[:0]
	h.slots = [256]uint16{}
}

// work estimates the work of a call for Redis; a single counter is 1. The counters of a group are
// usually one value.
func (s *sentCall) work() int { return s.width + (s.count-s.width)/4 }

// fits reports whether there is space for another call in the run.
func (h *manyRun) fits(c *sentCall) bool {
	return len(h.rules)+c.count <= maxRunRules && len(h.sets)+c.width <= maxRunRules && (h.work == 0 || h.work+c.work() <= maxRunWork)
}

// add adds call i of a request.
func (h *manyRun) add(r *request, i int) {
	c := &r.calls[i]
	counters := r.countersOf(c)
	slot := slotOf(counters)
	// A request with one call is concurrent with all others of the pipeline, so its call may join
	// an equal one anywhere. A call of a request with several must stay after the calls before it.
	group := len(h.groups) - 1
	if len(r.calls) == 1 {
		group = int(h.slots[slot]) - 1
	}
	if group >= 0 && h.groups[group].equal(c, counters) {
		g := &h.groups[group]
		h.members = append(h.members, member{r: r, call: i, group: group, turn: g.times})
		g.times++
		h.callsArg[g.at+2]++
		return
	}
	h.groups = append(h.groups, equalCalls{r: r, call: c, at: len(h.callsArg), times: 1, keyAt: len(h.cmd.args) - 3})
	h.members = append(h.members, member{r: r, call: i, group: len(h.groups) - 1})
	h.slots[slot] = uint16(len(h.groups))
	h.work += c.work()
	flags := byte(0)
	if c.cost != 1 || c.nowMS != 0 {
		flags |= flagGiven
	}
	if c.dryRun {
		flags |= flagDryRun
	}
	h.callsArg = append(h.callsArg, flags, byte(c.width), 1)
	if h.bounded {
		h.spare.join(c.spare)
	}
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
	if h.node && c.width > 0 {
		h.span(engine.HashTag(counters[0].Key), c.width)
	}
	if flags&flagGiven != 0 {
		h.callsArg = appendUint(appendUint(h.callsArg, c.cost, 7), c.nowMS, 6)
	}
}

// span adds keys with a tag.
func (h *manyRun) span(tag string, keys int) {
	if last := len(h.spansArg) - 1; last >= 0 && h.spanTag == tag && int(h.spansArg[last])+keys <= math.MaxUint8 {
		h.spansArg[last] += byte(keys) // at most 255
		return
	}
	h.spanTag = tag
	h.spansArg = append(h.spansArg, byte(keys)) // at most maxManyCounters
}

// slotOf returns a hash of the first key, which ends in a hash.
func slotOf(counters []engine.Counter) byte {
	if len(counters) == 0 || len(counters[0].Key) < 2 {
		return 0
	}
	key := counters[0].Key
	return key[len(key)-1] + 31*key[len(key)-2]
}

// equal reports whether a call is equal to those of the group, and can join it.
func (g *equalCalls) equal(c *sentCall, counters []engine.Counter) bool {
	if g.times == maxEqualCalls || g.call.count != c.count || g.call.cost != c.cost || g.call.nowMS != c.nowMS || g.call.dryRun || c.dryRun {
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
func (h *manyRun) rule(c *engine.Counter) byte {
	for i := range min(len(h.rules), ruleLookahead) {
		at := (h.hint + i) % len(h.rules)
		if r := &h.rules[at]; r.shadow == c.Shadow && r.id == c.ID && r.numbers == c.Numbers {
			h.hint = at + 1
			return byte(at + 1)
		}
	}
	h.rules = append(h.rules, runRule{c.Numbers, c.ID, c.Shadow})
	n := &c.Numbers
	b := append(h.rulesArg, byte(n.Algorithm), oneIf(c.Shadow))
	b = appendUint(b, n.Enforced(), 7)
	b = appendUint(b, n.WindowMS, 5)
	b = appendUint(b, extra(n), 5)
	place := byte(0)
	if n.Bounds != nil {
		h.boundsArg = appendBounds(h.boundsArg, n.Bounds)
		place = byte(len(h.boundsArg) / boundsBytes) // not more than the number of rules
	}
	h.rulesArg = appendID(append(b, place), c.ID)
	h.hint = len(h.rules)
	return byte(len(h.rules))
}

// set returns the number, from 1, of a group's rules in the run.
func (h *manyRun) set(e *keyEntry, counters []engine.Counter, order []int32) byte {
	for i := range h.sets {
		if h.sets[i] == (ruleSet{e.signature, e.bounds, e.count}) {
			return byte(i + 1)
		}
	}
	h.sets = append(h.sets, ruleSet{e.signature, e.bounds, e.count})
	h.setsArg = append(h.setsArg, byte(e.count))
	h.setsArg = binary.LittleEndian.AppendUint64(h.setsArg, e.signature)
	for _, i := range order {
		h.setsArg = append(h.setsArg, h.rule(&counters[i]))
	}
	return byte(len(h.sets))
}

// finishArgs adds the arguments after the keys. In a run for a node, the keys are arguments too.
func (h *manyRun) finishArgs(c *scriptCmd) {
	if h.node {
		c.args[2] = 0
		c.args = append(c.args, h.rulesArg, h.callsArg, h.setsArg, h.boundsArg, h.spansArg)
		return
	}
	if h.bounded {
		c.args = h.spare.appendKeys(c.args)
	}
	c.args[2] = len(c.args) - 3
	c.args = append(c.args, h.rulesArg, h.callsArg, h.setsArg, h.boundsArg)
	if h.bounded {
		c.args = append(c.args, h.spare.counts)
	}
}

// deliver passes the reply to the requests and returns the number of invalid values that were
// repaired.
func (h *manyRun) deliver(reply string, err error) (repaired int64) {
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
		if g.allowed == manyNotServed {
			c.err = errNotServed
			continue
		}
		c.decidedMS = c.nowMS
		if c.nowMS == 0 {
			c.decidedMS = clock
		}
		c.allowed, c.turn, c.reply, c.diverted = g.allowed, int64(m.turn), g.reply, g.marks
	}
	return readUint(reply[6:manyHeadBytes])
}

// locate finds the groups' parts of the reply. It returns errReply for a reply that does not have
// the expected form.
func (h *manyRun) locate(reply string) error {
	marks := ""
	if h.bounded {
		reply, marks = h.spare.cut(reply)
	}
	if len(reply) < manyHeadBytes || readUint(reply[:6]) > limit.MaxInstantMS {
		return errReply
	}
	rest := reply[manyHeadBytes:]
	for i := range h.groups {
		g := &h.groups[i]
		length := 1
		if h.node && rest != "" && rest[0] == manyNotServed {
			g.allowed, rest = manyNotServed, rest[1:]
			continue
		}
		entries := g.r.entriesOf(g.call)
		if h.bounded {
			g.marks = marks[g.keyAt : g.keyAt+len(entries)]
		}
		for j := range entries {
			length += entries[j].replyBytes()
		}
		if length > len(rest) || int(rest[0]) > g.times && rest[0] != manyStale {
			return errReply
		}
		g.allowed, g.reply, rest = int64(rest[0]), rest[1:length], rest[length:]
	}
	if rest != "" {
		return errReply
	}
	return nil
}

// extra returns the number of an algorithm that the scripts get in addition to limit and window.
func extra(n *limit.Numbers) int64 {
	switch {
	case n.Algorithm.Bucket():
		return n.Burst
	case n.Algorithm == limit.SlidingWindowCounter:
		return counterBase(n.WindowMS)
	}
	return n.PrecisionMS
}

// counterBase is the base in which a sliding window counter is stored. If both counts are below it,
// they are stored together with the number of the window as one number below 2^53
// (lua/counter_value.lua), until the year 2109. The base is 1431 for a window of a second, 11 085
// for a minute, 85 869 for an hour. It is part of the storage format.
func counterBase(windowMS int64) int64 {
	const last = 1 << 42 // ms since 1970
	return int64(math.Sqrt(float64(1<<53) / float64(last/windowMS+2)))
}
