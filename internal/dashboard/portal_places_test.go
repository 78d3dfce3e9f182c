package dashboard

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// portalCaller requests one customer page of a tenant without a network.
type portalCaller struct{ open, home, secret string }

func (s *stack) portalCaller(a tenants.Actor) portalCaller {
	s.t.Helper()
	_, token, err := s.store.CreatePortalLink(s.t.Context(), a, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(s.t, err)
	visit, secret, err := s.store.FollowPortalLink(s.t.Context(), token)
	require.NoError(s.t, err)
	return portalCaller{open: tenants.PortalLinkPath(token), home: portalPath + visit.String(), secret: secret}
}

func (c portalCaller) request(ctx context.Context, path, address string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, path, http.NoBody)
	r.RemoteAddr = address + ":1234"
	r.AddCookie(&http.Cookie{Name: portalCookie, Value: c.secret})
	return r
}

// status requests the page and returns the status of the answer.
func (c portalCaller) status(ctx context.Context, handler http.Handler, path, address string) int {
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, c.request(ctx, path, address))
	return w.Code
}

// Customer pages of a tenant that wait for its turn in Postgres, requested from any number of
// networks, leave places for the pages of other tenants, for those of its own members, and for
// sign-ins.
func TestPlacesOfCustomerPages(t *testing.T) {
	s := newStack(t)
	c, pages := s.portalCaller(s.a), s.pages.handler()
	bob := s.as("bob@example.com")
	require.Equal(t, http.StatusOK, bob.get("/rules").status)
	for _, path := range []string{c.open, c.home} {
		s.db.Conn(func(ctx context.Context, conn *pgx.Conn) {
			tx, err := conn.Begin(ctx)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(ctx) }()
			_, err = tx.Exec(ctx, "LOCK TABLE portals IN ACCESS EXCLUSIVE MODE") // read in the tenant's turn
			require.NoError(t, err)
			var all sync.WaitGroup
			var ended atomic.Int64
			for i := range 2 * maxWorking {
				all.Go(func() {
					c.status(ctx, pages, path, fmt.Sprintf("192.0.2.%d", i%8))
					ended.Add(1)
				})
			}
			// A request that is refused never has a place among customer pages.
			require.Eventually(t, func() bool {
				held := s.pages.portals.Held(s.a.TenantID())
				return held > 0 && int(ended.Load())+held == 2*maxWorking
			}, 10*time.Second, time.Millisecond, "each request has a place of its tenant, or is refused")
			require.LessOrEqual(t, s.pages.visiting.Held(s.a.TenantID()), maxPortal/4)
			leave, ok := s.pages.visiting.TakeShare(s.a.TenantID(), maxWorking, leastVisiting)
			require.True(t, ok, "a place for a member of the tenant")
			leave()
			require.Equal(t, http.StatusOK, bob.get("/rules").status, "another tenant's page")
			require.Equal(t, http.StatusOK, s.browser().get("/login").status)
			require.NoError(t, tx.Rollback(ctx))
			all.Wait()
		})
		require.Equal(t, http.StatusOK, c.status(t.Context(), pages, path, "192.0.2.1"), "its places are free again")
		require.Zero(t, s.pages.visiting.Held(s.a.TenantID()))
		require.Zero(t, s.pages.portals.Held(s.a.TenantID()))
	}
}

// Slow customer pages of several tenants leave a place for those of another one.
func TestSharesOfCustomerPages(t *testing.T) {
	s := newStack(t)
	entered, release := make(chan struct{}, maxPortal), make(chan struct{})
	routes := chi.NewRouter()
	routes.Use(s.pages.track, s.pages.guard)
	routes.Get("/portal/{visit}", s.pages.portalPage(func(w http.ResponseWriter, _ *http.Request, visit *tenants.PortalVisit) error {
		if visit.Tenant != s.b.TenantID() {
			entered <- struct{}{}
			<-release
		}
		w.WriteHeader(http.StatusOK)
		return nil
	}))
	var all sync.WaitGroup
	for network, a := range s.someTenants() {
		c := s.portalCaller(a)
		for range 8 {
			ended := make(chan struct{})
			all.Go(func() {
				defer close(ended)
				c.status(t.Context(), routes, c.home, fmt.Sprintf("192.0.2.%d", network))
			})
			select { // one after the other, because a request that is refused has a place for a moment
			case <-entered:
			case <-ended:
			}
		}
	}
	b := s.portalCaller(s.b)
	require.Equal(t, http.StatusOK, b.status(t.Context(), routes, b.home, "198.51.100.1"))
	close(release)
	all.Wait()
}

// someTenants returns tenant A and two more.
func (s *stack) someTenants() []tenants.Actor {
	c, _ := s.db.Tenant("tenant-c")
	d, _ := s.db.Tenant("tenant-d")
	return []tenants.Actor{s.a, c, d}
}

// unreadWriter is a browser that receives the head and does not read the rest until release.
type unreadWriter struct {
	*httptest.ResponseRecorder
	wrote   chan<- struct{}
	release <-chan struct{}
}

func (w unreadWriter) Write(b []byte) (int, error) {
	w.wrote <- struct{}{}
	<-w.release
	return w.ResponseRecorder.Write(b)
}

// Browsers that do not read their customer page have no place: those of three tenants refuse no
// other tenant's customers, nor further ones of their own.
func TestUnreadCustomerPagesHaveNoPlace(t *testing.T) {
	s := newStack(t)
	pages := s.pages.handler()
	wrote, release := make(chan struct{}, 1), make(chan struct{})
	var all sync.WaitGroup
	for network, a := range s.someTenants() {
		c := s.portalCaller(a)
		for range 8 {
			w := unreadWriter{httptest.NewRecorder(), wrote, release}
			r := c.request(t.Context(), c.home, fmt.Sprintf("192.0.2.%d", network))
			all.Go(func() { pages.ServeHTTP(w, r) })
			<-wrote
			require.Equal(t, http.StatusOK, w.Code)
		}
		require.Zero(t, s.pages.portals.Held(a.TenantID()))
		require.Zero(t, s.pages.visiting.Held(a.TenantID()))
	}
	for _, a := range []tenants.Actor{s.b, s.a} {
		c := s.portalCaller(a)
		require.Equal(t, http.StatusOK, c.status(t.Context(), pages, c.home, "198.51.100.1"))
	}
	close(release)
	all.Wait()
}

// Browsers that do not read logos keep a bounded number of them in memory.
func TestUnreadLogosAreBounded(t *testing.T) {
	s := newStack(t)
	_, err := s.store.EditPortal(t.Context(), s.a, tenants.Match{}, func(p *tenants.Portal) error { p.Brand = "Acme"; return nil })
	require.NoError(t, err)
	const size = 128 << 10
	s.db.Exec("UPDATE portals SET logo = $2 WHERE tenant_id = $1", s.a.TenantID(), make([]byte, size))
	c, pages := s.portalCaller(s.a), s.pages.handler()
	leave, ok := s.pages.logos.Take(s.a.TenantID(), maxTenantLogosUnread-size)
	require.True(t, ok)
	wrote, release := make(chan struct{}, 1), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		pages.ServeHTTP(unreadWriter{httptest.NewRecorder(), wrote, release}, c.request(t.Context(), c.home+"/logo", "192.0.2.1"))
	})
	<-wrote
	require.Equal(t, maxTenantLogosUnread, s.pages.logos.Taken())
	require.Equal(t, http.StatusTooManyRequests, c.status(t.Context(), pages, c.home+"/logo", "192.0.2.1"))
	require.Equal(t, http.StatusOK, c.status(t.Context(), pages, c.home, "192.0.2.1"), "the page itself")
	close(release)
	all.Wait()
	leave()
	require.Equal(t, http.StatusOK, c.status(t.Context(), pages, c.home+"/logo", "192.0.2.1"))
	require.Zero(t, s.pages.logos.Taken())
}
