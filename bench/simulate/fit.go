package simulate

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
)

// Fit changes the costs that are fitted until the model agrees best with the rows that are marked
// for it, and prints them. It changes three costs at a time at random, ever less, and keeps what is
// better.
func Fit(w io.Writer, in Inputs) Inputs {
	random := rand.New(rand.NewPCG(in.Seed, 1))
	const tries = 100
	best := in.misfit()
	for _, step := range []float64{0.4, 0.25, 0.15, 0.1, 0.06, 0.03} {
		for range tries {
			before := in.Costs
			for range 3 {
				fitted := in.fitted()
				fitted[random.IntN(len(fitted))].Value *= math.Exp(step * random.NormFloat64())
			}
			if found := in.misfit(); found < best {
				best = found
			} else {
				in.Costs = before
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
		&c.Driver, &c.Request, &c.Rule, &c.Tenants, &c.Crowd, &c.Pipeline, &c.Call, &c.NodeCall,
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
	for t, m := range measuredRows() {
		if m.fit {
			s := m.simulate(in, t)
			add(s.rate, m.rate)
			add(s.server, m.server)
			add(s.redis, m.redis)
			add(s.driver, m.driver)
		}
	}
	return sum / n
}
