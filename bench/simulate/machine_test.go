package simulate

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// meanWait lets slices arrive at random at a process with so many cores, and returns for how long
// they waited for a core on average.
func meanWait(cores int, perSecond float64, service func(*clock) time.Duration) time.Duration {
	const slices = 200_000
	c := newClock(7)
	p := newMachine(c, cores).process(cores)
	waited, done := time.Duration(0), 0
	for at, n := time.Duration(0), 0; n < slices; n++ {
		at += c.exponential(time.Duration(float64(time.Second) / perSecond))
		c.after(at, func() {
			arrived, cost := c.now, service(c)
			p.run(cost, func() {
				waited += c.now - arrived - cost
				done++
			})
		})
	}
	c.runUntil(time.Duration(2 * slices / perSecond * float64(time.Second)))
	if done != slices {
		panic("slices are missing")
	}
	return waited / slices
}

// erlangC is the mean wait in an M/M/c queue, in seconds.
func erlangC(cores int, perSecond float64, service time.Duration) float64 {
	a := perSecond * service.Seconds()
	term, sum := 1.0, 0.0
	for k := range cores {
		sum += term
		term *= a / float64(k+1)
	}
	rho := a / float64(cores)
	waits := term / (1 - rho)
	return waits / (sum + waits) * service.Seconds() / (float64(cores) * (1 - rho))
}

// The waits of the model are those of queueing theory, for one and for several cores.
func TestMachineIsAQueue(t *testing.T) {
	const service = 10 * time.Microsecond
	random := func(c *clock) time.Duration { return c.exponential(service) }
	fixed := func(*clock) time.Duration { return service }
	for _, cores := range []int{1, 2, 8} {
		for _, rho := range []float64{0.3, 0.7, 0.85} {
			perSecond := rho * float64(cores) / service.Seconds()
			want := erlangC(cores, perSecond, service)
			tolerance := 0.05*want + 2e-9 // rounding to nanoseconds
			require.InDelta(t, want, meanWait(cores, perSecond, random).Seconds(), tolerance, "M/M/%d at %.2f", cores, rho)

			// Cosmetatos (1975); exact for one core.
			n := float64(cores)
			want *= 0.5 * (1 + (1-rho)*(n-1)*(math.Sqrt(4+5*n)-2)/(16*rho*n))
			require.InDelta(t, want, meanWait(cores, perSecond, fixed).Seconds(), 0.05*want+2e-9, "M/D/%d at %.2f", cores, rho)
		}
	}
}

// Processes with enough work for all cores get equal parts of them, and a process with one thread
// at most one core.
func TestProcessesShareCores(t *testing.T) {
	c := newClock(1)
	m := newMachine(c, 2)
	busy, other, single := m.process(2), m.process(2), m.process(1)
	for _, p := range []*process{busy, other, single} {
		var again func()
		again = func() { p.run(100*time.Microsecond, again) }
		for range 4 {
			again()
		}
	}
	c.runUntil(time.Second)
	require.InDelta(t, 2, (busy.used + other.used + single.used).Seconds(), 0.01)
	require.InDelta(t, busy.used.Seconds(), other.used.Seconds(), 0.1)
	require.LessOrEqual(t, single.used, time.Second)
	require.Greater(t, single.used, 400*time.Millisecond)
}

// A core that begins with another process costs that process time, and usable cores take longer.
func TestSwitchingCosts(t *testing.T) {
	c := newClock(1)
	m := newMachine(c, 1)
	m.switching, m.usable = 5*time.Microsecond, 0.5
	a, b := m.process(1), m.process(1)
	var order []string
	a.run(10*time.Microsecond, func() { order = append(order, "a") })
	b.run(10*time.Microsecond, func() { order = append(order, "b") })
	a.run(10*time.Microsecond, func() { order = append(order, "a") })
	c.runUntil(time.Second)
	require.Equal(t, []string{"a", "a", "b"}, order, "a core continues with a process that has work")
	require.Equal(t, 25*time.Microsecond, a.used)
	require.Equal(t, 15*time.Microsecond, b.used)
}
