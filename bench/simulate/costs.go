package simulate

import "time"

// A Cost is one measured input of the model.
type Cost struct {
	Value  float64
	Unit   string
	What   string
	Source string
}

// Costs are the inputs of the model. All CPU times are those of one machine, whose measured tables
// are in measured.go: the absolute speed of other machines differs, the ratios hardly.
type Costs struct {
	Usable, Slower, Variation, Driver                               Cost
	Request, Rule, Tenants, Crowd, Pipeline, Call, Caller, NodeCall Cost
	Run, Entry, FirstEntries, NodeEntry, RedisRule, Equal           Cost
	Switching, Waking, Fallback, Refusal                            Cost
}

const (
	micros = "µs"
	// firstEntries is how many entries of a script run cost more than the following ones.
	firstEntries = 10
	// manyTenants is from how many active tenants on a request costs Crowd in place of Tenants.
	manyTenants = 1000
)

// Measured are the costs that fit the measured tables.
func Measured() Costs {
	return Costs{
		Usable: Cost{0.84, "of a core", "CPU time that the processes get",
			"the bare server on a nearly idle machine, in the table of subjects of [performance.md](performance.md#subjects): 54 397/s × 31 µs on two cores. In the validation: the bare server of the same table"},
		Slower:    Cost{1, "times", "CPU time of the same work, relative to the table of instances", "in the validation: the bare server of the same table"},
		Variation: Cost{0.5, "of a slice", "part of each slice of CPU time that is random, exponentially", "assumed"},
		Driver:    Cost{12, micros, "driver: a request", "fit"},

		Request:  Cost{9.5, micros, "instance: a request over HTTP, with one rule", "fit"},
		Rule:     Cost{0.95, micros, "instance: each further rule", "fit"},
		Tenants:  Cost{3.1, micros, "instance: a request, in addition, if some tenants are active", "fit"},
		Crowd:    Cost{17.6, micros, "instance: the same, if 10 000 tenants with few checks each are active, whose usage is written", "fit"},
		Pipeline: Cost{64, micros, "instance: a pipeline", "fit"},
		Call:     Cost{3.8, micros, "instance: a call in a pipeline", "fit"},
		Caller:   Cost{1.5, micros, "of it, in the goroutine of the caller, if checks are not HTTP requests", "assumed"},
		NodeCall: Cost{0.37, micros, "instance: the same to a Cluster, in addition", "fit"},

		Run:          Cost{67, micros, "Redis: a script run", "fit"},
		Entry:        Cost{2.1, micros, "Redis: an entry of a run", "fit"},
		FirstEntries: Cost{3.6, micros, "Redis: each of the first ten entries, in addition", "fit"},
		NodeEntry:    Cost{0.6, micros, "Redis: an entry in a Cluster, in addition", "fit"},
		RedisRule:    Cost{0.98, micros, "Redis: each further rule of an entry", "fit"},
		Equal:        Cost{0.2, micros, "Redis: a call that is equal to another one of its run", "assumed"},

		Switching: Cost{26, micros, "a core begins to run another process", "fit"},
		Waking:    Cost{10, micros, "an idle core begins to run a process", "fit"},
		Fallback:  Cost{0.4, micros, "instance: a decision without Redis", "`BenchmarkEvaluateMemory`"},
		Refusal:   Cost{3, micros, "instance: a request that is refused because of overload", "[decision 14](decisions/0014-a-bound-by-waits.md)"},
	}
}

// list returns the costs in the order of the table.
func (c *Costs) list() []*Cost {
	return []*Cost{
		&c.Usable, &c.Slower, &c.Variation, &c.Driver, &c.Request, &c.Rule, &c.Tenants, &c.Crowd, &c.Pipeline, &c.Call, &c.Caller, &c.NodeCall,
		&c.Run, &c.Entry, &c.FirstEntries, &c.NodeEntry, &c.RedisRule, &c.Equal,
		&c.Switching, &c.Waking, &c.Fallback, &c.Refusal,
	}
}

func (c Cost) duration() time.Duration { return time.Duration(c.Value * float64(time.Microsecond)) }

// rates are the costs of a deployment, as durations.
type rates struct {
	driver, before, after                time.Duration
	pipeline, call                       time.Duration
	run, entry, first, equal             time.Duration
	switching, waking, fallback, refusal time.Duration
}

// rates returns the costs for a deployment.
func (c *Costs) rates(d config) rates {
	further := time.Duration(d.rules - 1)
	request := c.Request.duration() + further*c.Rule.duration()
	switch {
	case d.tenants >= manyTenants:
		request += c.Crowd.duration()
	case d.tenants > 1:
		request += c.Tenants.duration()
	}
	r := rates{
		driver: c.Driver.duration(), before: request / 2, after: request - request/2,
		pipeline: c.Pipeline.duration(), call: c.Call.duration(),
		run: c.Run.duration(), first: c.FirstEntries.duration(), equal: c.Equal.duration(),
		entry:     c.Entry.duration() + further*c.RedisRule.duration(),
		switching: c.Switching.duration(), waking: c.Waking.duration(), fallback: c.Fallback.duration(), refusal: c.Refusal.duration(),
	}
	if d.inside {
		r.before, r.after = c.Caller.duration()/2, c.Caller.duration()/2
		r.call -= c.Caller.duration()
	}
	if d.shards > 0 {
		r.call += c.NodeCall.duration()
		r.entry += c.NodeEntry.duration()
	}
	return r
}

// build returns what a pipeline costs an instance: half of it before it is sent.
func (r *rates) build(b *batch) time.Duration {
	return r.pipeline + time.Duration(len(b.reqs))*r.call
}

// decide returns what a pipeline costs Redis.
func (r *rates) decide(b *batch, entries int) time.Duration {
	return r.run + time.Duration(entries)*r.entry + time.Duration(min(entries, firstEntries))*r.first +
		time.Duration(len(b.reqs)-entries)*r.equal
}

// Inputs are all inputs of a run: the same inputs give the same output.
type Inputs struct {
	Costs
	Seed uint64
}

// slowed returns the costs of a slower machine.
func (c Costs) slowed() *Costs {
	for _, cost := range c.list() {
		if cost.Unit == micros {
			cost.Value *= c.Slower.Value
		}
	}
	return &c
}
