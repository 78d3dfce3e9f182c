package api

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/overload"
	"weir/internal/places"
	"weir/internal/tenants"
	"weir/web"
)

// secureServer is a server with HTTP/2, whose bound of all requests is most.
func (s *checkStack) secureServer(most int64) (url string, trust *tls.Config) {
	s.t.Helper()
	deps := s.deps
	deps.Store = s.db.Open(tenants.Config{Acquire: time.Minute})
	deps.Metrics = NewMetrics(prometheusRegistry())
	lane := NewLane()
	handler := New(Config{Headers: bothStyles, Bound: overload.Fixed(most), Lane: lane}, deps)
	addr, trust := serveTLS(s.t, lane, NewServer(handler, deps.Logger))
	return "https://" + addr.String(), trust
}

// streams sends one request on each of n HTTP/2 streams, over as many connections as that takes,
// and returns the answers as they arrive.
func streams(t *testing.T, n int, trust *tls.Config, request func(ctx context.Context) *http.Request) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan string, n)
	var clients []*http.Client
	for i := range n {
		if i%maxStreams == 0 {
			transport := &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true, MaxConnsPerHost: 1}
			clients = append(clients, &http.Client{Transport: transport})
		}
		client := clients[len(clients)-1]
		go func() {
			response, err := client.Do(request(ctx))
			if err != nil {
				answers <- err.Error()
				return
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			answers <- string(body)
		}()
	}
	t.Cleanup(func() {
		cancel()
		for _, client := range clients {
			client.CloseIdleConnections()
		}
	})
	return answers
}

// crowded waits for n answers, and asserts that most requests of n were refused because of the
// number in flight. Without a share of their own, the bound of all requests refuses n - bound.
func crowded(t *testing.T, answers <-chan string, n, bound, most int64, meanwhile func()) {
	t.Helper()
	var refused int64
	for i := range n {
		if i == n-most {
			meanwhile()
		}
		if strings.Contains(<-answers, overloadedDetail) {
			refused++
		}
	}
	require.Greater(t, refused, n-bound+bound/4)
}

// checkAs sends a check of another tenant over its own connection.
func checkAs(t *testing.T, url string, trust *tls.Config, key string) int {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: trust.Clone(), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/check", strings.NewReader(`{"subject":"neighbour"}`))
	require.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: transport}).Do(r)
	require.NoError(t, err)
	defer response.Body.Close()
	return response.StatusCode
}

// takeAll takes all places that a tenant can have.
func takeAll(p *places.Places[limit.TenantID], tenant limit.TenantID, most int) (leave []func()) {
	for {
		l, ok := p.TakeShare(tenant, most, 1)
		if !ok {
			return leave
		}
		leave = append(leave, l)
	}
}

// lock locks a table until the test ends, so that queries of it wait.
func (s *checkStack) lock(table string) {
	s.t.Helper()
	locked, unlock, unlocked := make(chan error), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(unlocked)
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, "BEGIN; LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE")
			locked <- err
			<-unlock
		})
	}()
	require.NoError(s.t, <-locked)
	s.t.Cleanup(func() { close(unlock); <-unlocked })
}

// A key that may read opens many streams whose queries wait for Postgres. Only a few of them are in
// flight, so the checks of other tenants are answered. Before, they filled the places of all.
func TestAdminRequestsLeaveRoomForChecks(t *testing.T) {
	s := newCheckStack(t)
	const n, bound = 200, 100
	url, trust := s.secureServer(bound)
	require.Equal(t, 200, checkAs(t, url, trust, s.key), "its policy is in memory now")
	require.Equal(t, 200, checkAs(t, url, trust, s.other))
	s.lock("members")
	answers := streams(t, n, trust, func(ctx context.Context) *http.Request {
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"/v1/members", nil) // a valid URL
		r.Header.Set("Authorization", "Bearer "+s.key)
		return r
	})
	crowded(t, answers, n, bound, overload.Fixed(bound).Small(), func() {
		require.Equal(t, 200, checkAs(t, url, trust, s.other))
		require.Equal(t, 200, checkAs(t, url, trust, s.key), "its own checks have another share")
	})
}

// Anybody can send webhooks of endpoints that do not exist. They wait for their turn at Postgres,
// are not in flight meanwhile, and have places of their own, of which one network has few.
func TestUnknownClientsLeaveRoomForChecks(t *testing.T) {
	s := newCheckStack(t)
	const n, bound = 200, 100
	url, trust := s.secureServer(bound)
	require.Equal(t, 200, checkAs(t, url, trust, s.other), "its policy is in memory now")
	s.lock("billing_endpoints")
	answers := streams(t, n, trust, func(ctx context.Context) *http.Request {
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/webhooks/stripe/"+uuid.NewString(), strings.NewReader("{}"))
		return r
	})
	crowded(t, answers, n, bound, 1, func() {
		require.Equal(t, 200, checkAs(t, url, trust, s.other))
		require.Equal(t, 200, statusOf(t, url+"/docs", trust), "it is another kind of request")
	})
}

// statusOf asks for a document, without a key.
func statusOf(t *testing.T, url string, trust *tls.Config) int {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: trust.Clone()}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := (&http.Client{Transport: transport}).Do(r)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode
}

// A share of an admin request ends with the request, whatever its answer, and with a stream before
// it ends.
func TestAdminShareEnds(t *testing.T) {
	s := newCheckStack(t)
	registered := s.lane.server.Load()
	share := registered.capacity.of(s.actor.TenantID())
	most := registered.capacity.bound.Small()
	for _, path := range []string{"/v1/rules", "/v1/rules/none", "/v1/rules?x=1", "/v1/tenants"} {
		s.contract.call(s.key, http.MethodGet, path, nil)
		require.Eventually(t, func() bool { return share.admin.Load() == 0 }, time.Minute, time.Millisecond, path)
	}
	share.admin.Add(most)
	a := s.contract.call(s.key, http.MethodGet, "/v1/rules", nil)
	a.problem(503, codeOverloaded)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Equal(t, 200, s.contract.call(s.other, http.MethodGet, "/v1/rules", nil).status)
	s.check(`{"subject":"admin share"}`).decision(200)
	share.admin.Add(-most)
	require.Equal(t, 200, s.contract.call(s.key, http.MethodGet, "/v1/rules", nil).status)

	// The places of one kind of requests without a key, by network, and all of them.
	half := int(most) / 2
	for _, network := range []string{"127.0.0.1", "192.0.2.1"} {
		leave := takePlaces(t, registered.capacity.docs, network, half)
		taken := s.contract.call("", http.MethodGet, "/docs", nil)
		if network == "127.0.0.1" {
			taken.problem(503, codeOverloaded)
			require.Equal(t, 200, s.contract.call("", http.MethodGet, healthPath, nil).status)
			require.Equal(t, 200, s.contract.call(s.key, http.MethodGet, "/v1/rules", nil).status, "they are known")
			require.Equal(t, 422, s.contract.call("", http.MethodPost, deviceLoginPath, strings.NewReader(`{"machine":""}`)).status, "of another kind")
		} else {
			require.Equal(t, 200, taken.status)
		}
		leave()
	}
	takePlaces(t, registered.capacity.docs, "192.0.2.1", half)
	takePlaces(t, registered.capacity.docs, "192.0.2.2", int(most)-half)
	s.contract.call("", http.MethodGet, "/docs", nil).problem(503, codeOverloaded)
	require.Equal(t, 200, s.contract.call("", http.MethodGet, web.Path("js/docs.js"), nil).status, "files of pages need no place")
}

// A client that has all networks of a site leaves places for requests without a key to other sites.
// Before, two of its 65,536 networks had all of them.
func TestKeylessPlacesOfWideNetworks(t *testing.T) {
	t.Parallel()
	a := newCapacity(&Metrics{}, overload.Fixed(10_000), places.NewProcessors(2))
	take := func(address string) bool {
		r := httptest.NewRequest(http.MethodGet, "/docs", nil)
		r.RemoteAddr = net.JoinHostPort(address, "1234")
		_, ok := a.takeKeyless(a.docs, r)
		return ok
	}
	taken := 0
	for i := range 1000 {
		if take(fmt.Sprintf("2001:db8:1:%x::1", i*64)) {
			taken++
		}
	}
	require.EqualValues(t, a.bound.Small()*3/4, taken)
	require.True(t, take("2001:db8:2::1"))
	require.True(t, take("198.51.100.1"))
}

// takePlaces takes n places of a network. leave gives them back.
func takePlaces(t *testing.T, s keyless, network string, n int) (leave func()) {
	t.Helper()
	var leaves []func()
	for range n {
		leave, ok := s.Take(origin.WithinHost(network), 1000, 1000)
		require.True(t, ok)
		leaves = append(leaves, leave)
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}
