package notify_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/notify"
	"weir/internal/tenants"
)

// endpointOf creates an endpoint of a tenant, with notifications for it.
func (r *rig) endpointOf(a tenants.Actor, url string, notifications int) {
	r.t.Helper()
	in := tenants.NotificationEndpoint{URL: url, Enabled: true}
	e, _, err := r.store.CreateNotificationEndpoint(r.t.Context(), a, in)
	require.NoError(r.t, err)
	for range notifications {
		_, err := r.store.TestNotificationEndpoint(r.t.Context(), a, e.ID)
		require.NoError(r.t, err)
	}
}

// lateServer answers 200, always 14.9 s after the request by the clock of the sender. It answers
// when something arrives on the channel.
type lateServer struct {
	*httptest.Server
	answer  chan struct{}
	arrived chan struct{}
	open    atomic.Int32 // requests that wait for their answer
}

func newLateServer(r *rig) *lateServer {
	s := &lateServer{answer: make(chan struct{}), arrived: make(chan struct{}, 1000)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body) // or the server does not notice that the sender hangs up
		s.open.Add(1)
		defer s.open.Add(-1)
		s.arrived <- struct{}{}
		select {
		case <-s.answer:
			r.pass(14900 * time.Millisecond)
		case <-q.Context().Done():
		}
	}))
	r.t.Cleanup(s.Close)
	return s
}

// Endpoints that answer, but just before the timeout, do not stop the notifications of others,
// however many tenants they belong to and however much they have to get. They kept all places for
// ever, because a place was kept as long as something was delivered.
func TestLateEndpointsOfManyTenants(t *testing.T) {
	r := newRig(t)
	late := newLateServer(r)
	for n := range 8 {
		a, _ := r.db.Tenant(fmt.Sprint("late-", n))
		for range 4 {
			r.endpointOf(a, late.URL, 4)
		}
	}
	victim, _ := r.db.Tenant("tenant-b")
	server := newReceiver(t)
	r.endpointOf(victim, server.URL, 0)

	ctx, cancel := context.WithCancel(t.Context())
	sender := notify.New(notify.Options{
		Store: r.store, Networks: loopback, Every: 10 * time.Millisecond, Now: r.now,
	})
	var running sync.WaitGroup
	running.Go(func() { sender.Run(ctx) })
	defer func() { cancel(); running.Wait() }()
	for round := range 3 {
		// Nobody answers until the victim has its notification, which is the newest.
		r.pass(time.Second)
		n := tenants.Notification{Type: tenants.QuotaReached}
		require.NoError(t, r.store.Notify(ctx, victim.TenantID(), n))
		require.Eventually(t, func() bool { return len(server.take()) == 1 },
			10*time.Second, time.Millisecond, "round %d, before a request ends", round)
		require.LessOrEqual(t, late.open.Load(), int32(32), "of 40 places")
		for range 8 { // each tenant gets something
			<-late.arrived
			late.answer <- struct{}{}
		}
	}
}

// Endpoints that are known to be slow get half of the places, even if quick answers are between.
func TestSlowEndpointsGetHalf(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	q := notify.NewTurns(func() time.Time { return at })
	var slow, fast []tenants.DeliveryTask
	for range 60 {
		slow = append(slow, tenants.DeliveryTask{Tenant: uuid.New(), Endpoint: uuid.New()})
		fast = append(fast, tenants.DeliveryTask{Tenant: uuid.New(), Endpoint: uuid.New()})
	}
	offer := func(lists ...[]tenants.DeliveryTask) int {
		var all []tenants.DeliveryTask
		for _, list := range lists {
			all = append(all, list...)
		}
		q.Offer(all)
		return len(q.Take())
	}
	for _, task := range slow {
		q.Judge(task, false)
		q.Judge(task, true)
	}
	require.Equal(t, 20, offer(slow), "half of 40")
	require.Equal(t, 20, offer(slow, fast), "the other half")
	require.Zero(t, offer(slow, fast))
	for _, task := range slow[:20] {
		q.Leave(task, false)
	}
	at = at.Add(2 * time.Minute)
	for _, task := range slow {
		q.Judge(task, true)
	}
	require.Equal(t, 20, offer(slow[:30]), "quick for a while, as the others")
}

// Places go to tenants in turn: one that was served is behind those that were not, and one with
// many endpoints gets a share of what is left.
func TestPlacesInTurn(t *testing.T) {
	t.Parallel()
	q := notify.NewTurns(time.Now)
	var many []tenants.DeliveryTask
	for range 100 {
		many = append(many, tenants.DeliveryTask{Tenant: uuid.New(), Endpoint: uuid.New()})
	}
	served := map[uuid.UUID]int{}
	q.Offer(many)
	for range 10 {
		for _, task := range q.Take() {
			served[task.Tenant]++
			q.Leave(task, true)
		}
	}
	require.Len(t, served, 100)
	for _, times := range served {
		require.Equal(t, 4, times, "400 places for 100 tenants")
	}

	q = notify.NewTurns(time.Now)
	greedy, other := uuid.New(), uuid.New()
	many = many[:0]
	for range 10 {
		many = append(many, tenants.DeliveryTask{Tenant: greedy, Endpoint: uuid.New()})
	}
	q.Offer(slices.Clone(many))
	require.Len(t, q.Take(), 4)
	q.Offer(append(many, tenants.DeliveryTask{Tenant: other, Endpoint: uuid.New()}))
	require.Len(t, q.Take(), 1)
}
