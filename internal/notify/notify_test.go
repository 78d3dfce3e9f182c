package notify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"weir/internal/notify"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		// Servers of testenv, and idle connections of clients.
		if err := goleak.Find(goleak.IgnoreAnyFunction("os/exec.(*Cmd).Start.func2"), goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
			goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop")); err != nil {
			println(err.Error())
			code = 1
		}
	}
	os.Exit(code)
}

// rig is a tenant, a sender that may connect to loopback, and a clock that the test controls.
type rig struct {
	t      *testing.T
	db     *tenantstest.Database
	store  *tenants.Store
	sender *notify.Sender
	a      tenants.Actor

	mu sync.Mutex
	at time.Time
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{t: t, at: time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)}
	r.db = tenantstest.NewWith(t, tenants.Config{Now: r.now})
	r.store = r.db.Store
	r.a, _ = r.db.Tenant("tenant-a")
	r.sender = notify.New(notify.Options{Store: r.store, Networks: loopback})
	return r
}

func (r *rig) now() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.at
}

func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = r.at.Add(d)
}

func (r *rig) once() {
	r.t.Helper()
	require.NoError(r.t, r.sender.Once(r.t.Context()))
}

// endpoint creates an endpoint of the tenant.
func (r *rig) endpoint(url string, types ...string) (tenants.NotificationEndpoint, string) {
	r.t.Helper()
	e, secret, err := r.store.CreateNotificationEndpoint(r.t.Context(), r.a, tenants.NotificationEndpoint{URL: url, Types: types, Enabled: true})
	require.NoError(r.t, err)
	return e, secret
}

func (r *rig) notify(kind string, data any) {
	r.t.Helper()
	require.NoError(r.t, r.store.Notify(r.t.Context(), r.a.TenantID(), tenants.Notification{Type: kind, Data: data}))
}

// deliveries returns the deliveries of an endpoint, newest first.
func (r *rig) deliveries(e tenants.NotificationEndpoint) []tenants.NotificationDelivery {
	r.t.Helper()
	list, _, err := r.store.NotificationDeliveries(r.t.Context(), r.a, tenants.DeliveryFilter{Endpoint: &e.ID}, tenants.Page{Limit: 200})
	require.NoError(r.t, err)
	return list
}

// received is a request that an endpoint got.
type received struct {
	header http.Header
	body   []byte
}

func (r *received) id() string { return r.header.Get(standardwebhooks.HeaderWebhookID) }

// verify verifies a request as a receiver does.
func (r *received) verify(t *testing.T, secret string) error {
	t.Helper()
	hook, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	return hook.Verify(r.body, r.header)
}

// receiver answers with its status, and keeps what it gets.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	status int
	header http.Header
	answer string
	got    []received
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{status: http.StatusNoContent, header: http.Header{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body) // the signature tells if it is incomplete
		r.mu.Lock()
		defer r.mu.Unlock()
		r.got = append(r.got, received{q.Header.Clone(), body})
		for name, values := range r.header {
			w.Header()[name] = values
		}
		w.WriteHeader(r.status)
		_, _ = io.WriteString(w, r.answer) // the sender may hang up
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) answers(status int, header http.Header, answer string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status, r.header, r.answer = status, header, answer
}

// take returns what was received since the last call.
func (r *receiver) take() []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := r.got
	r.got = nil
	return got
}

// An endpoint gets the notifications of its types, signed as Standard Webhooks says, once.
func TestDelivery(t *testing.T) {
	r := newRig(t)
	all, some := newReceiver(t), newReceiver(t)
	e, secret := r.endpoint(all.URL)
	chosen, _ := r.endpoint(some.URL, tenants.QuotaReached)
	other, _ := r.db.Tenant("tenant-b")
	foreign := newReceiver(t)
	_, _, err := r.store.CreateNotificationEndpoint(t.Context(), other, tenants.NotificationEndpoint{URL: foreign.URL, Enabled: true})
	require.NoError(t, err)

	r.notify(tenants.LimitRequestCreated, map[string]string{"subject": "ada"})
	r.once()
	r.once()
	got := all.take()
	require.Len(t, got, 1)
	require.NoError(t, got[0].verify(t, secret))
	require.Equal(t, "application/json", got[0].header.Get("Content-Type"))
	require.JSONEq(t, `{"type":"limit_request.created","timestamp":"2026-01-31T12:00:00Z","data":{"subject":"ada"}}`, string(got[0].body))
	require.Empty(t, some.take(), "it did not select the type")
	require.Empty(t, foreign.take(), "it belongs to another tenant")

	list := r.deliveries(e)
	require.Len(t, list, 1)
	require.Equal(t, tenants.DeliveryDelivered, list[0].State)
	require.Equal(t, 204, list[0].Status)
	require.Equal(t, 1, list[0].Attempts)
	require.Equal(t, got[0].id(), list[0].WebhookID)
	require.Empty(t, r.deliveries(chosen))

	r.notify(tenants.QuotaReached, nil)
	r.once()
	require.Len(t, some.take(), 1)
	require.Len(t, all.take(), 1)
}

// An endpoint that fails gets the same notification again after growing waits. After a day it is
// parked with the reason, and a replay sends it again.
func TestRetriesForADay(t *testing.T) {
	r := newRig(t)
	server := newReceiver(t)
	e, secret := r.endpoint(server.URL)
	server.answers(503, nil, strings.Repeat("x", 10_000)+"\x00")
	r.notify(tenants.QuotaReached, nil)

	began, ids := r.now(), map[string]bool{}
	var d tenants.NotificationDelivery
	for {
		r.once()
		for _, got := range server.take() {
			require.NoError(t, got.verify(t, secret), "the signature has the time of the attempt")
			ids[got.id()] = true
		}
		d = r.deliveries(e)[0]
		if d.State != tenants.DeliveryPending {
			break
		}
		require.Equal(t, "the endpoint answered 503", d.Why)
		require.Equal(t, strings.Repeat("x", 200), d.Answer, "more is not kept")
		r.once()
		require.Empty(t, server.take(), "it is not due")
		r.pass(d.DueAt.Sub(r.now()))
	}
	require.Len(t, ids, 1, "all attempts have one webhook-id")
	require.Equal(t, tenants.DeliveryParked, d.State)
	require.InDelta(t, 20, d.Attempts, 4)
	require.InDelta(t, 22, r.now().Sub(began).Hours(), 2.1, "the next attempt would be after a day")

	replayed, err := r.store.ReplayNotification(t.Context(), r.a, d.ID)
	require.NoError(t, err)
	require.Equal(t, tenants.DeliveryPending, replayed.State)
	server.answers(200, nil, "ok")
	r.once()
	got := server.take()
	require.Len(t, got, 1)
	require.Contains(t, ids, got[0].id())
	d = r.deliveries(e)[0]
	require.Equal(t, tenants.DeliveryDelivered, d.State)
	require.Equal(t, 1, d.Attempts)
	require.Empty(t, d.Why)
	require.Equal(t, "ok", d.Answer)
}

// Waits double from 5 s up to 3 hours, a fifth shorter or longer. An endpoint can ask for a longer
// one.
func TestWaits(t *testing.T) {
	t.Parallel()
	for failures, want := range map[int]time.Duration{1: 5 * time.Second, 2: 10 * time.Second, 5: 80 * time.Second, 12: 10240 * time.Second, 13: 3 * time.Hour, 1000: 3 * time.Hour} {
		seen := map[time.Duration]bool{}
		for range 100 {
			wait := notify.WaitAfter(failures)
			require.InDelta(t, want, wait, 0.2*float64(want)+1)
			seen[wait] = true
		}
		require.Greater(t, len(seen), 50, "deliveries that failed together spread out")
	}
	for value, want := range map[string]time.Duration{"": 0, "120": 2 * time.Minute, "999999": 3 * time.Hour, "-1": 0, "Fri, 31 Dec 1999 23:59:59 GMT": 0} {
		require.Equal(t, want, notify.RetryAfter(value), value)
	}
}

// After a rotation, both secrets sign for the time of overlap.
func TestRotation(t *testing.T) {
	r := newRig(t)
	server := newReceiver(t)
	e, first := r.endpoint(server.URL)
	_, second, err := r.store.RotateNotificationSecret(t.Context(), r.a, e.ID, time.Hour)
	require.NoError(t, err)
	require.NotEqual(t, first, second)
	send := func() received {
		t.Helper()
		r.notify(tenants.QuotaReached, nil)
		r.once()
		got := server.take()
		require.Len(t, got, 1)
		return got[0]
	}
	got := send()
	require.NoError(t, got.verify(t, first))
	require.NoError(t, got.verify(t, second))
	r.pass(time.Hour)
	got = send()
	require.Error(t, got.verify(t, first), "the overlap has ended")
	require.NoError(t, got.verify(t, second))

	_, third, err := r.store.RotateNotificationSecret(t.Context(), r.a, e.ID, 0)
	require.NoError(t, err)
	got = send()
	require.Error(t, got.verify(t, second), "a secret that leaked is replaced at once")
	require.NoError(t, got.verify(t, third))
}

// A redirect could lead anywhere, so it is not followed.
func TestRedirectsAreNotFollowed(t *testing.T) {
	r := newRig(t)
	target, server := newReceiver(t), newReceiver(t)
	server.answers(307, http.Header{"Location": {target.URL}}, "")
	e, _ := r.endpoint(server.URL)
	r.notify(tenants.QuotaReached, nil)
	r.once()
	require.Len(t, server.take(), 1)
	require.Empty(t, target.take())
	require.Equal(t, "the endpoint answered 307: redirects are not followed, so change the address", r.deliveries(e)[0].Why)
}

// An endpoint that answers 410 is disabled, and the trail says so. What it has left is parked.
func TestGone(t *testing.T) {
	r := newRig(t)
	server := newReceiver(t)
	e, _ := r.endpoint(server.URL)
	r.notify(tenants.QuotaReached, 1)
	r.notify(tenants.QuotaReached, 2)
	server.answers(410, nil, "")
	r.once()
	r.once()
	require.Len(t, server.take(), 1)
	for _, d := range r.deliveries(e) {
		require.Equal(t, tenants.DeliveryParked, d.State)
		require.NotEmpty(t, d.Why)
	}
	e, err := r.store.NotificationEndpoint(t.Context(), r.a, e.ID)
	require.NoError(t, err)
	require.False(t, e.Enabled)
	require.Equal(t, "it answered 410 (gone)", e.DisabledWhy)
	rows, _, err := r.store.Audit(t.Context(), r.a, tenants.AuditFilter{Kind: "notification_endpoint", Action: "update"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, "notifications", rows[0].ActorName)

	// A test reaches a disabled endpoint; enabling it removes the reason.
	server.answers(200, nil, "")
	_, err = r.store.TestNotificationEndpoint(t.Context(), r.a, e.ID)
	require.NoError(t, err)
	r.once()
	require.Len(t, server.take(), 1)
	e, err = r.store.EditNotificationEndpoint(t.Context(), r.a, e.ID, tenants.Match{}, func(e *tenants.NotificationEndpoint) error {
		e.Enabled = true
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, e.DisabledWhy)
}

// Several servers send each notification once. What a server that died had claimed, another one
// sends again when the lease ends.
func TestManyServers(t *testing.T) {
	r := newRig(t)
	server := newReceiver(t)
	e, _ := r.endpoint(server.URL)
	for i := range 40 {
		r.notify(tenants.QuotaReached, i)
	}
	dead, err := r.store.ClaimDelivery(t.Context(), tenants.DeliveryTask{Tenant: r.a.TenantID(), Endpoint: e.ID})
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 3 {
		sender := notify.New(notify.Options{Store: r.store, Networks: loopback})
		all.Go(func() {
			if err := sender.Once(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ids := map[string]int{}
	for _, got := range server.take() {
		ids[got.id()]++
	}
	require.Len(t, ids, 39)
	for id, times := range ids {
		require.Equal(t, 1, times, id)
	}
	require.NotContains(t, ids, dead.WebhookID)
	r.pass(time.Minute)
	r.once()
	got := server.take()
	require.Len(t, got, 1)
	require.Equal(t, dead.WebhookID, got[0].id())

	// The server was not dead but slow: what it records now changes nothing.
	state, err := r.store.SettleDelivery(t.Context(), dead, tenants.DeliveryResult{Final: true, Why: "late"})
	require.NoError(t, err)
	require.Equal(t, tenants.DeliveryParked, state)
	for _, d := range r.deliveries(e) {
		require.Equal(t, tenants.DeliveryDelivered, d.State)
	}
}

// Endpoints that do not answer keep only their own notifications waiting. When a server stops, what
// is on its way is not lost.
func TestSilentEndpoints(t *testing.T) {
	r := newRig(t)
	silent := make(chan struct{})
	arrived := make(chan struct{}, 100)
	hang := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		arrived <- struct{}{}
		<-silent
	}))
	t.Cleanup(hang.Close)
	t.Cleanup(func() { close(silent) })
	var hanging []tenants.NotificationEndpoint
	for range 10 {
		e, _ := r.endpoint(hang.URL)
		hanging = append(hanging, e)
	}
	r.notify(tenants.QuotaReached, nil)
	other, _ := r.db.Tenant("tenant-b")
	server := newReceiver(t)
	_, _, err := r.store.CreateNotificationEndpoint(t.Context(), other, tenants.NotificationEndpoint{URL: server.URL, Enabled: true})
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	sender := notify.New(notify.Options{Store: r.store, Networks: loopback, Every: 10 * time.Millisecond})
	var running sync.WaitGroup
	running.Go(func() { sender.Run(ctx) })
	for range 4 {
		<-arrived
	}
	require.NoError(t, r.store.Notify(ctx, other.TenantID(), tenants.Notification{Type: tenants.QuotaReached}))
	require.Eventually(t, func() bool { return len(server.take()) == 1 }, time.Minute, time.Millisecond, "while four endpoints hang")
	require.Empty(t, arrived, "one tenant has four requests at once, at most")
	cancel()
	running.Wait()
	attempted := 0
	for _, e := range hanging {
		d := r.deliveries(e)[0]
		require.Equal(t, tenants.DeliveryPending, d.State)
		attempted += d.Attempts
	}
	require.Equal(t, 4, attempted)
}

// Endpoints that did not answer before get half of the places, so those of many tenants do not
// delay the others.
func TestSilentEndpointsOfManyTenants(t *testing.T) {
	r := newRig(t)
	silent := make(chan struct{})
	arrived := make(chan struct{}, 100)
	var hangs atomic.Bool
	hang := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if !hangs.Load() {
			panic(http.ErrAbortHandler) // ends the connection without an answer
		}
		arrived <- struct{}{}
		<-silent
	}))
	t.Cleanup(hang.Close)
	t.Cleanup(func() { close(silent) })
	notifyAll := func(of []tenants.Actor) {
		for _, a := range of {
			require.NoError(t, r.store.Notify(t.Context(), a.TenantID(), tenants.Notification{Type: tenants.QuotaReached}))
		}
	}
	endpoint := func(a tenants.Actor, url string) tenants.NotificationEndpoint {
		e, _, err := r.store.CreateNotificationEndpoint(t.Context(), a, tenants.NotificationEndpoint{URL: url, Enabled: true})
		require.NoError(t, err)
		return e
	}
	var many []tenants.Actor
	for n := range 8 {
		a, _ := r.db.Tenant(fmt.Sprint("silent-", n))
		many = append(many, a)
		for range 4 {
			endpoint(a, hang.URL)
		}
	}
	other, _ := r.db.Tenant("tenant-b")
	server := newReceiver(t)
	endpoint(other, server.URL)

	sender := notify.New(notify.Options{Store: r.store, Networks: loopback, Every: 10 * time.Millisecond})
	notifyAll(many)
	require.NoError(t, sender.Once(t.Context()), "nobody answers")
	hangs.Store(true)
	notifyAll(many)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { sender.Run(ctx) })
	for range 8 {
		<-arrived
	}
	require.NoError(t, r.store.Notify(ctx, other.TenantID(), tenants.Notification{Type: tenants.QuotaReached}))
	require.Eventually(t, func() bool { return len(server.take()) == 1 }, time.Minute, time.Millisecond, "while eight endpoints hang")
	require.Empty(t, arrived, "each of the tenants has one")
	cancel()
	running.Wait()
}

// A tenant has a bounded number of notifications in an hour. What is beyond is counted.
func TestNumberOfNotifications(t *testing.T) {
	r := newRig(t)
	e, _ := r.endpoint("https://example.com/weir")
	r.db.Exec("INSERT INTO notifications (tenant_id, id, type, body, created_at) SELECT $1, gen_random_uuid(), 'x', '{}', $2 FROM generate_series(1, 999)",
		r.a.TenantID(), r.now())
	for range 3 {
		r.notify(tenants.QuotaReached, nil)
	}
	require.Len(t, r.deliveries(e), 1)
	e, err := r.store.NotificationEndpoint(t.Context(), r.a, e.ID)
	require.NoError(t, err)
	require.EqualValues(t, 2, e.Dropped)
	_, err = r.store.TestNotificationEndpoint(t.Context(), r.a, e.ID)
	var conflict *tenants.ConflictError
	require.ErrorAs(t, err, &conflict)
	r.pass(time.Hour)
	r.notify(tenants.QuotaReached, nil)
	require.Len(t, r.deliveries(e), 2)

	// After a month, nothing of them is kept.
	r.pass(tenants.NotificationRetention + time.Second)
	require.NoError(t, r.store.Purge(t.Context()))
	require.Empty(t, r.deliveries(e))
}

// The body of a test names the endpoint, so that a person who tries it knows what sent it.
func TestTestNotification(t *testing.T) {
	r := newRig(t)
	server := newReceiver(t)
	e, secret := r.endpoint(server.URL, tenants.QuotaReached)
	d, err := r.store.TestNotificationEndpoint(t.Context(), r.a, e.ID)
	require.NoError(t, err)
	require.Equal(t, tenants.DeliveryPending, d.State)
	r.once()
	got := server.take()
	require.Len(t, got, 1)
	require.NoError(t, got[0].verify(t, secret))
	var body struct {
		Type string
		Data struct{ Endpoint uuid.UUID }
	}
	require.NoError(t, json.Unmarshal(got[0].body, &body))
	require.Equal(t, tenants.TestNotification, body.Type)
	require.Equal(t, e.ID, body.Data.Endpoint)
	d, err = r.store.NotificationDelivery(t.Context(), r.a, d.ID)
	require.NoError(t, err)
	require.Equal(t, string(got[0].body), d.Body)
}
