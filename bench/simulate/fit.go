package simulate

import (
	"fmt"
	"io"
	"math"
)

// Fit changes the costs whose source begins with "fit" until the model agrees best with the rows
// that are marked for it, and prints them. It tries one cost after the other.
func Fit(w io.Writer, in Inputs) Inputs {
	best := in.misfit()
	for step := 0.3; step > 0.02; step /= 1.6 {
		for range 2 {
			for _, c := range in.fitted() {
				before := c.Value
				for _, factor := range []float64{1 + step, 1 / (1 + step)} {
					c.Value = before * factor
					if found := in.misfit(); found < best {
						best, before = found, c.Value
						break
					}
					c.Value = before
				}
			}
		}
		_, _ = fmt.Fprintf(w, "step %.2f: mean difference %.1f %%\n", step, 100*math.Sqrt(best)) // a progress message
	}
	for _, c := range in.list() {
		_, _ = fmt.Fprintf(w, "%s: %.3g\n", c.What, c.Value)
	}
	return in
}

func (c *Costs) fitted() (costs []*Cost) {
	return []*Cost{
		&c.Usable, &c.Driver, &c.Request, &c.Rule, &c.Crowd, &c.Pipeline, &c.Call, &c.NodeCall,
		&c.Run, &c.Entry, &c.FirstEntries, &c.NodeEntry, &c.RedisRule, &c.Switching, &c.Waking,
	}
}

// misfit is the mean square of the differences from the rows for the fit.
func (in Inputs) misfit() float64 {
	sum, n := 0.0, 0.0
	add := func(simulated, measured float64) {
		d := off(simulated, measured)
		sum, n = sum+d*d, n+1
	}
	for i := range measuredRows {
		if m := &measuredRows[i]; m.fit {
			s := m.simulate(in)
			add(s.rate, m.rate)
			add(s.server, m.server)
			add(s.redis, m.redis)
			add(s.driver, m.driver)
		}
	}
	for i := range runRows {
		if m := &runRows[i]; m.fit {
			add(m.simulate(in).perCall, m.perCall)
		}
	}
	return sum / n
}
