package places

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// modelTurns are Turns that look at all who wait at each change.
type modelTurns struct {
	most, each, shared, used int
	of                       map[int]int
	clock                    int            // of arrivals and of places that were left
	left                     map[int]int    // when holders last left a place
	waiting                  []*modelWaiter // in the order of arrival
}

type modelWaiter struct {
	holder  int
	arrival int
	given   bool
}

func (m *modelTurns) arrive(holder int) *modelWaiter {
	m.clock++
	w := &modelWaiter{holder: holder, arrival: m.clock}
	m.waiting = append(m.waiting, w)
	m.next()
	return w
}

func (m *modelTurns) leave(holder int) {
	m.used--
	m.of[holder]--
	m.clock++
	m.left[holder] = m.clock
	m.next()
}

// before reports whether a gets a place before b.
func (m *modelTurns) before(a, b *modelWaiter) bool {
	if x, y := m.of[a.holder], m.of[b.holder]; x != y {
		return x < y
	}
	return max(a.arrival, m.left[a.holder]) < max(b.arrival, m.left[b.holder])
}

func (m *modelTurns) permits(own int) bool {
	if own == 0 {
		return m.used < m.most
	}
	return own < m.each && m.used < m.shared
}

func (m *modelTurns) next() {
	for {
		best := -1
		for i, w := range m.waiting {
			if m.permits(m.of[w.holder]) && (best < 0 || m.before(w, m.waiting[best])) {
				best = i
			}
		}
		if best < 0 {
			return
		}
		w := m.waiting[best]
		m.waiting = slices.Delete(m.waiting, best, best+1)
		m.used++
		m.of[w.holder]++
		w.given = true
	}
}

// pair is a request for a place of both.
type pair struct {
	model *modelWaiter
	real  *waiter[int] // nil: it had its place at once
}

func (p pair) given() bool { return p.real == nil || p.real.at == nil }

// Whatever arrives, leaves and gives up, the same requests have places as if each change looked at
// all who wait.
func TestTurnsLikeTheModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		most, holders := 1+random.IntN(12), 1+random.IntN(8)
		each, reserved := 1+random.IntN(most), random.IntN(most+1)
		turns := NewTurns[int](most, each, reserved)
		model := &modelTurns{most: most, each: each, shared: max(1, most-reserved), of: map[int]int{}, left: map[int]int{}}
		var all []pair
		for range 400 {
			switch at := random.IntN(len(all) + 1); {
			case at == len(all) || random.IntN(3) == 0: // arrives
				holder := random.IntN(holders)
				all = append(all, pair{model: model.arrive(holder), real: turns.arrive(holder, false)})
			case all[at].given(): // leaves
				model.leave(all[at].model.holder)
				turns.leave(all[at].model.holder)
				all = slices.Delete(all, at, at+1)
			default: // gives up
				model.waiting = slices.DeleteFunc(model.waiting, func(w *modelWaiter) bool { return w == all[at].model })
				require.True(t, turns.giveUp(all[at].real))
				all = slices.Delete(all, at, at+1)
			}
			for i, p := range all {
				require.Equal(t, p.model.given, p.given(), "seed %d, request %d", seed, i)
			}
			require.Equal(t, model.used, turns.used)
		}
		for len(all) > 0 { // nothing stays of those that have left
			at := slices.IndexFunc(all, pair.given)
			turns.leave(all[at].model.holder)
			all = slices.Delete(all, at, at+1)
		}
		require.Zero(t, turns.used)
		require.Empty(t, turns.of)
		require.Empty(t, turns.waiting.queues)
	}
}
