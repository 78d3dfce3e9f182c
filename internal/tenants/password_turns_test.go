package tenants

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/places"
)

// hashing1 hashes one password at a time, and none until the test permits it.
type hashing1 struct {
	t *testing.T
	hasher
	got chan string // names of hashes that are done
}

// newHashing1 hashes with 1 MiB, which takes some milliseconds with the race detector: a client
// that is noted late, because the machine is busy, is few places late.
func newHashing1(t *testing.T) *hashing1 {
	h := &hashing1{t, hasher{PasswordCost{Memory: 1 << 10, Passes: 1}, newHashRounds(1)}, make(chan string)}
	require.NoError(t, h.rounds.Take(t.Context()))
	return h
}

// from starts a hash for a client, and returns when it waits.
func (h *hashing1) from(address, name string) {
	h.t.Helper()
	waiting := h.rounds.Waiting()
	go func() {
		ctx := WithOrigin(h.t.Context(), Origin{Address: address})
		_, err := h.hash(ctx, "correct horse")
		if err == nil {
			h.got <- name
		}
	}()
	for h.rounds.Waiting() == waiting {
		runtime.Gosched()
	}
}

// order returns who is next, n times. A client leaves its place before it is noted, so the order is
// not exact.
func (h *hashing1) order(n int) (names []string) {
	h.rounds.Leave()
	for range n {
		names = append(names, <-h.got)
	}
	return names
}

// A client that signs in very often keeps no other one waiting. Before, all waited in one queue.
func TestHashesTakeTurns(t *testing.T) {
	t.Parallel()
	h := newHashing1(t)
	for i := range 50 {
		h.from("192.0.2.1", fmt.Sprint("flood ", i))
	}
	h.from("192.0.2.2", "its neighbour")
	h.from("198.51.100.1", "another")
	order := h.order(52)
	require.Subset(t, order[:26], []string{"its neighbour", "another"})
}

// Nor does a client with all networks of a site: they have the turns of one.
func TestHashesOfManyNetworks(t *testing.T) {
	t.Parallel()
	h := newHashing1(t)
	for i := range 50 {
		h.from(fmt.Sprintf("2001:db8:1:%x::1", i), fmt.Sprint("flood ", i))
	}
	h.from("2001:db8:1:ff00::1", "another home of the site")
	h.from("2001:db8:2::1", "another site")
	order := h.order(52)
	require.Subset(t, order[:26], []string{"another home of the site", "another site"})
}

// Too many hashes that wait are refused like those that wait too long.
func TestHashesAreBounded(t *testing.T) {
	t.Parallel()
	h := newHashing1(t)
	h.rounds = places.NewRounds[netip.Prefix](1, 1)
	require.NoError(t, h.rounds.Take(t.Context()))
	refused := make(chan error)
	go func() {
		_, err := h.hash(WithOrigin(context.Background(), Origin{Address: "192.0.2.1"}), "correct horse")
		refused <- err
	}()
	for h.rounds.Waiting() == 0 {
		runtime.Gosched()
	}
	go func() { _, _ = h.hash(WithOrigin(t.Context(), Origin{Address: "192.0.2.1"}), "correct horse") }()
	require.True(t, IsBusy(<-refused))
}
