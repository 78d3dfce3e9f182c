package places

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Two holders that want as many places as they can get do not keep out a third one: some places are
// for holders that have none. With at most half for each, they had all of them.
func TestTurns(t *testing.T) {
	turns := NewTurns[string](7, 4, 2)
	a, b, c, d, e := "a", "b", "c", "d", "e"
	var leaves []func()
	now, cancel := context.WithCancel(t.Context())
	cancel() // a holder that has to wait gives up at once
	takes := func(holder string) bool {
		leave, err := turns.Take(now, holder)
		if err == nil {
			leaves = append(leaves, leave)
		}
		return err == nil
	}
	all := func(holder string) (count int) {
		for takes(holder) {
			count++
		}
		return count
	}
	require.Equal(t, 4, all(a), "half")
	require.Equal(t, 1, all(b))
	require.True(t, takes(c))
	require.False(t, takes(c), "it has one")
	require.True(t, takes(d))
	require.False(t, takes(e), "all are taken")

	// b has waited for a shorter time, but has fewer than a.
	granted := make(chan string, 2)
	wait := func(name, holder string) {
		waiting := turns.WaitingOf(holder)
		go func() {
			if _, err := turns.Take(t.Context(), holder); err == nil {
				granted <- name
			}
		}()
		for turns.WaitingOf(holder) == waiting {
			runtime.Gosched()
		}
	}
	wait("a", a)
	wait("b", b)
	leaves[6]() // d
	leaves[5]() // c
	require.Empty(t, granted, "these are for holders that have none")
	leaves[0]() // of a
	require.Equal(t, "b", <-granted)
	require.Empty(t, granted)
	leaves[1]()
	require.Equal(t, "a", <-granted)

	one := NewTurns[string](1, 1, 1)
	leave, err := one.Take(t.Context(), a)
	require.NoError(t, err)
	_, err = one.Take(now, b)
	require.ErrorIs(t, err, context.Canceled)
	leave()
	require.Zero(t, one.used)
	require.Empty(t, one.of)
	require.Empty(t, one.waiting.queues)
}

// A holder that had a place waits behind those who wait already, also with a request that came
// before theirs. Before, a holder with one place at most and several requests had it again each
// time.
func TestTurnsAfterAPlace(t *testing.T) {
	t.Parallel()
	for _, third := range []string{"before", "after"} {
		turns := NewTurns[string](1, 1, 0)
		require.Nil(t, turns.arrive("ada", false))
		second := turns.arrive("ada", false)
		var others []*waiter[string]
		if third == "before" {
			others = append(others, turns.arrive("ada", false))
		}
		victim := turns.arrive("bob", false)
		if third == "after" {
			others = append(others, turns.arrive("ada", false))
		}
		eve := turns.arrive("eve", false)
		has := func(w *waiter[string]) bool { return w.at == nil }

		turns.leave("ada")
		require.True(t, has(victim), "ada, who had the place, is behind all who wait")
		turns.leave("bob")
		require.True(t, has(eve))
		require.False(t, has(second))
		turns.leave("eve")
		require.True(t, has(second))
		turns.leave("ada")
		require.True(t, has(others[0]))
		turns.leave("ada")
		require.Empty(t, turns.of)
	}
}

// With few processors, long work that has the turn of its kind does not wait for the short work of
// its tenant that came before, since other tenants wait for its turn meanwhile. After it, the short
// work is next.
func TestLongWorkIsBeforeShortWorkOfItsTenant(t *testing.T) {
	t.Parallel()
	turns, tenant := NewProcessors(2), uuid.UUID{1}
	type turn struct {
		kind  string
		leave func()
	}
	granted := make(chan turn)
	wait := func(kind string, of *Turns[uuid.UUID]) {
		waiting := turns.Long.single.WaitingOf(tenant)
		go func() {
			if leave, err := of.Take(t.Context(), tenant); err == nil {
				granted <- turn{kind, leave}
			}
		}()
		for turns.Long.single.WaitingOf(tenant) == waiting {
			runtime.Gosched()
		}
	}
	first, err := turns.Short.Take(t.Context(), tenant)
	require.NoError(t, err)
	for range 2 {
		wait("short", turns.Short)
	}
	wait("long", turns.Long)
	first()
	for _, kind := range []string{"long", "short", "short"} {
		next := <-granted
		require.Equal(t, kind, next.kind)
		next.leave()
	}
	require.Empty(t, turns.Long.single.of)
}

// Work that must be done in any case waits for its place, although its client has disconnected.
// Before, a client that sent and left had all of its work done at once.
func TestTryWithinWaitsForDisconnectedClients(t *testing.T) {
	turns := NewTurns[string](1, 1, 0)
	leave, err := turns.Take(t.Context(), "a")
	require.NoError(t, err)
	left := make(chan struct{})
	go func() {
		turns.TryWithin("b", time.Hour)()
		close(left)
	}()
	for turns.Waiting() == 0 {
		runtime.Gosched()
	}
	leave()
	<-left
	require.Zero(t, turns.Waiting())
}
