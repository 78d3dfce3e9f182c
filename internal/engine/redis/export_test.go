package redis

import (
	"slices"
	"time"

	"weir/internal/engine"
)

// EvaluateTogether decides the calls as if they were of different requests that share one pipeline,
// and returns them in the order in which they were decided.
func (e *Engine) EvaluateTogether(calls ...*engine.Call) (order []*engine.Call) {
	reqs := make([]*request, len(calls))
	for i, c := range calls {
		reqs[i] = newRequest()
		reqs[i].add(c)
	}
	p := &pipeline{engine: e}
	p.begin(e.first, together)
	p.load(reqs)
	of := func(r *request) *engine.Call { return calls[slices.Index(reqs, r)] }
	for _, cmd := range p.cmds {
		if cmd.run == nil {
			order = append(order, of(reqs[slices.IndexFunc(reqs, func(r *request) bool { return &r.calls[0] == cmd.call })]))
			continue
		}
		members := slices.Clone(cmd.run.members)
		slices.SortStableFunc(members, func(a, b member) int { return a.group - b.group })
		for _, m := range members {
			order = append(order, of(m.r))
		}
	}
	p.run(deadlineContext{time.Now().Add(time.Minute)})
	p.deliver()
	for i, c := range calls {
		c.Err = nil
		e.take(c, reqs[i], &reqs[i].calls[0])
	}
	return order
}
