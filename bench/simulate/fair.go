package simulate

import "time"

// fairness chooses the requests of the next pipeline, as package engine/redis does: all of them if
// they fit, otherwise by deficit round robin over tenants. Without turns it takes them in order,
// which shows what the turns are good for.
type fairness struct {
	turns  bool
	flows  map[*tenant]*flow
	active []*flow
}

type flow struct {
	tenant  *tenant
	reqs    []*request
	deficit int
	picked  bool
	waits   waits // of its oldest request in each pipeline
}

// waits is the smallest wait since it was last read, plus 1; 0: none.
type waits time.Duration

func (w *waits) note(wait time.Duration) {
	if *w == 0 || waits(wait) < *w-1 {
		*w = waits(wait) + 1
	}
}

func (w *waits) read() time.Duration {
	least := *w
	*w = 0
	return max(time.Duration(least)-1, 0)
}

// pick moves waiting requests into b, and returns the others and the wait of the pipeline: that of
// its oldest request.
func (f *fairness) pick(b *batch, waiting []*request) (left []*request, wait time.Duration) {
	if fitting(waiting) || !f.turns {
		left = f.inOrder(b, waiting)
		for _, r := range b.reqs {
			wait = max(wait, b.began-r.began)
		}
		return left, wait
	}
	f.sort(waiting)
	calls, work := 0, 0
	for full := false; !full && len(f.active) > 0; {
		turn := f.active[0]
		f.active = f.active[:copy(f.active, f.active[1:])]
		turn.deficit += fairQuantum
		next := 0
		for ; next < len(turn.reqs) && turn.reqs[next].work <= turn.deficit; next++ {
			r := turn.reqs[next]
			if full = calls > 0 && (calls+1 > maxBatch || work+r.work > maxBatchWork); full {
				break
			}
			b.take(r)
			calls, work = calls+1, work+r.work
			turn.deficit -= r.work
			if !turn.picked {
				turn.picked = true
				turn.waits.note(b.began - r.began)
				wait = max(wait, b.began-r.began)
			}
		}
		turn.reqs = turn.reqs[:copy(turn.reqs, turn.reqs[next:])]
		switch {
		case len(turn.reqs) == 0:
			f.leave(turn)
		case full: // it continues its turn in the next pipeline
			turn.deficit -= fairQuantum
			f.active = append([]*flow{turn}, f.active...)
		default:
			f.active = append(f.active, turn)
		}
	}
	left = waiting[:0]
	for _, r := range waiting {
		if r.state == waitingState {
			left = append(left, r)
		}
	}
	clear(waiting[len(left):])
	return left, wait
}

func (f *fairness) inOrder(b *batch, waiting []*request) []*request {
	calls, work := 0, 0
	for calls < len(waiting) {
		r := waiting[calls]
		if calls > 0 && (calls+1 > maxBatch || work+r.work > maxBatchWork) {
			break
		}
		b.take(r)
		calls, work = calls+1, work+r.work
	}
	for _, turn := range f.active {
		f.leave(turn)
	}
	f.active = f.active[:0]
	left := copy(waiting, waiting[calls:])
	clear(waiting[left:])
	return waiting[:left]
}

func fitting(waiting []*request) bool {
	work := 0
	for _, r := range waiting {
		work += r.work
	}
	return len(waiting) <= 1 || len(waiting) <= maxBatch && work <= maxBatchWork
}

func (b *batch) take(r *request) {
	r.state = sentState
	b.reqs = append(b.reqs, r)
}

// sort distributes the waiting requests over the flows of their tenants.
func (f *fairness) sort(waiting []*request) {
	for _, turn := range f.active {
		turn.reqs, turn.picked = turn.reqs[:0], false
	}
	for _, r := range waiting {
		turn := f.flows[r.subject.tenant]
		if turn == nil {
			turn = &flow{tenant: r.subject.tenant}
			f.flows[turn.tenant] = turn
			f.active = append(f.active, turn)
		}
		turn.reqs = append(turn.reqs, r)
	}
	kept := f.active[:0]
	for _, turn := range f.active {
		if len(turn.reqs) == 0 {
			f.leave(turn)
			continue
		}
		kept = append(kept, turn)
	}
	f.active = kept
}

func (f *fairness) leave(turn *flow) { delete(f.flows, turn.tenant) }
