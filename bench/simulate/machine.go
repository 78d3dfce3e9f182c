package simulate

import "time"

// A machine has cores, for which its processes compete. The processes that have work take turns. A
// core continues with a process until the process has no work, or until the turn has lasted for
// quantum and another process waits.
type machine struct {
	clock *clock
	// usable is the part of a core's time that processes get. Interrupts, the hypervisor and other
	// processes use the rest.
	usable float64
	idle   []*core
	ready  ring[*process]
	// switching is the CPU time that a process needs in addition when a core begins to run it: a
	// system call returns, and the caches have the data of others. waking is the same for a core
	// that was idle.
	switching, waking time.Duration
	// variation is the part of each slice that is random, with an exponential distribution. The
	// mean stays the same.
	variation float64
}

const quantum = 1400 * time.Microsecond // Linux's base slice with two processors

type core struct {
	last  *process
	since time.Duration
}

// A process is slices of CPU time that are ready. It takes them as Go's scheduler takes goroutines:
// first those that became ready in the process, then those that yielded, then what the network has
// brought. Every 61st of a thread is one that yielded. A thread that begins takes those first.
type process struct {
	machine *machine
	threads int // how many cores it can use at once
	local   ring[slice]
	yielded ring[slice]
	arrived ring[slice]
	running int
	listed  bool // in the machine's ready processes
	used    time.Duration
	taken   int64
	waited  time.Duration // of all slices, until they were taken
}

const yieldedTurn = 61 // of Go's scheduler

// slice is CPU time that is used without a pause. Then done is called.
type slice struct {
	cost  time.Duration
	done  func()
	ready time.Duration
	same  bool // of the goroutine whose slice ends now
}

func newMachine(c *clock, cores int) *machine {
	m := &machine{clock: c, usable: 1}
	for range cores {
		m.idle = append(m.idle, &core{})
	}
	return m
}

func (m *machine) process(threads int) *process { return &process{machine: m, threads: threads} }

// run adds a slice after the others, as a goroutine that another one made ready.
func (p *process) run(cost time.Duration, done func()) {
	p.add(&p.local, slice{cost, done, p.machine.clock.now, false})
}

// yield adds a slice, as a goroutine that yields.
func (p *process) yield(done func()) { p.add(&p.yielded, slice{0, done, p.machine.clock.now, false}) }

// arrive adds a slice for a message of the network.
func (p *process) arrive(cost time.Duration, done func()) {
	p.add(&p.arrived, slice{cost, done, p.machine.clock.now, false})
}

func (p *process) add(to *ring[slice], s slice) {
	to.push(s)
	p.list()
	p.machine.dispatch()
}

// next adds a slice before all others, as a goroutine that continues.
func (p *process) next(cost time.Duration, done func()) {
	p.local.pushFront(slice{cost, done, p.machine.clock.now, true})
	p.list()
	p.machine.dispatch()
}

func (p *process) waiting() int { return p.local.count + p.yielded.count + p.arrived.count }

// take returns the next slice. There is one.
func (p *process) take(beginning bool) slice {
	if p.local.count > 0 && p.local.items[p.local.first].same {
		return p.local.pop()
	}
	p.taken++
	if p.yielded.count > 0 && (beginning || p.local.count == 0 || p.taken%int64(max(1, yieldedTurn/p.threads)) == 0) {
		return p.yielded.pop()
	}
	if p.local.count == 0 || beginning {
		for p.arrived.count > 0 {
			p.local.push(p.arrived.pop())
		}
	}
	return p.local.pop()
}

func (p *process) list() {
	if !p.listed && p.running < p.threads && p.waiting() > 0 {
		p.listed = true
		p.machine.ready.push(p)
	}
}

// dispatch lets idle cores begin with processes that have work.
func (m *machine) dispatch() {
	for len(m.idle) > 0 && m.ready.count > 0 {
		p := m.ready.pop()
		p.listed = false
		if p.waiting() == 0 || p.running == p.threads { // another core was faster
			continue
		}
		c := m.pick(p)
		extra := m.waking
		if c.last != p {
			extra = max(extra, m.switching)
		}
		m.begin(c, p, extra)
	}
}

// pick takes the idle core that ran the process last, or any.
func (m *machine) pick(p *process) *core {
	at := len(m.idle) - 1
	for i, c := range m.idle {
		if c.last == p {
			at = i
		}
	}
	c := m.idle[at]
	m.idle = append(m.idle[:at], m.idle[at+1:]...)
	return c
}

func (m *machine) begin(c *core, p *process, extra time.Duration) {
	c.last, c.since = p, m.clock.now
	p.running++
	m.work(c, p, extra, true)
}

// work runs the next slice of a process on a core.
func (m *machine) work(c *core, p *process, extra time.Duration, beginning bool) {
	s := p.take(beginning)
	p.waited += m.clock.now - s.ready
	p.list()
	cost := m.vary(s.cost + extra)
	m.clock.after(time.Duration(float64(cost)/m.usable), func() {
		p.used += cost
		s.done()
		m.proceed(c, p)
	})
}

// proceed continues with the process, or with another one.
func (m *machine) proceed(c *core, p *process) {
	if p.waiting() > 0 && (m.clock.now-c.since < quantum || m.ready.count == 0) {
		m.work(c, p, 0, false)
		return
	}
	p.running--
	p.list()
	if m.ready.count == 0 {
		m.idle = append(m.idle, c)
		return
	}
	other := m.ready.pop()
	other.listed = false
	if other.waiting() == 0 || other.running == other.threads {
		m.idle = append(m.idle, c)
		m.dispatch()
		return
	}
	extra := time.Duration(0)
	if other != p {
		extra = m.switching
	}
	m.begin(c, other, extra)
}

func (m *machine) vary(cost time.Duration) time.Duration {
	if m.variation == 0 || cost == 0 {
		return cost
	}
	part := time.Duration(float64(cost) * m.variation)
	return cost - part + m.clock.exponential(part)
}
