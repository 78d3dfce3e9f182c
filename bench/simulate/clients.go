package simulate

import (
	"encoding/binary"
	"time"
)

// closed starts clients that send their next request when they have the answer to the last one.
// They are connected to the instances in turn.
func (w *world) closed(clients int, choose func() *subject) {
	for n := range clients {
		i := w.instances[n%len(w.instances)]
		r := new(request)
		r.answered = func(r *request) {
			r.subject = choose()
			w.send(i, r)
		}
		r.answered(r)
	}
}

// open starts requests at random instants (a Poisson process), until an instant. The load balancer
// sends them to the given instances in turn.
func (w *world) open(perSecond float64, until time.Duration, instances []*instance, choose func() *subject) {
	mean := time.Duration(float64(time.Second) / perSecond)
	turn := 0
	var next func()
	next = func() {
		if w.clock.now >= until {
			return
		}
		w.send(instances[turn], &request{subject: choose()})
		turn = (turn + 1) % len(instances)
		w.clock.after(w.clock.exponential(mean), next)
	}
	w.clock.after(w.clock.exponential(mean), next)
}

// crowd returns tenants with so many subjects each. Their slots are random.
func (w *world) crowd(tenants, subjectsEach, class int) (subjects []*subject) {
	for range tenants {
		w.tenants++
		t := &tenant{slot: w.clock.rand.IntN(slots), class: class}
		binary.BigEndian.PutUint64(t.id[:8], w.tenants)
		for range subjectsEach {
			subjects = append(subjects, &subject{tenant: t, window: time.Minute})
		}
	}
	return subjects
}

// uniform returns a choice in which all are equally likely.
func (w *world) uniform(subjects []*subject) func() *subject {
	return func() *subject { return subjects[w.clock.rand.IntN(len(subjects))] }
}
