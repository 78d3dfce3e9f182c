package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Empty fields of filters do not stand in the address: the server redirects a browser without
// scripts to the address without them.
func TestAddressesHaveNoEmptyFilters(t *testing.T) {
	s := newStack(t)
	b := s.as("ann@example.com")
	for asked, clean := range map[string]string{
		"/decisions?subject=&rule=&show=all&since=": "/decisions?show=all",
		"/subjects?q=&plan=&state=&label=":          "/subjects",
		"/usage?rule=a%26b&plan=":                   "/usage?rule=a%26b",
	} {
		got := b.get(asked)
		require.Equal(t, http.StatusSeeOther, got.status, asked)
		require.Equal(t, clean, got.header.Get("Location"))
	}
	require.Equal(t, http.StatusOK, b.get("/decisions?show=all").status)
}

// Slow pages of one tenant, requested from any number of networks, leave places for the pages of
// other tenants and for sign-ins.
func TestPlacesOfATenant(t *testing.T) {
	s := newStack(t)
	entered, release := make(chan struct{}, 2*maxWorking), make(chan struct{})
	slow := s.pages.track(s.pages.guard(s.pages.page(func(w http.ResponseWriter, _ *http.Request, v *visit) error {
		if v.actor().TenantID() == s.a.TenantID() {
			entered <- struct{}{}
			<-release
		}
		w.WriteHeader(http.StatusOK)
		return nil
	})))
	get := func(token, address string) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/usage", http.NoBody)
		r.RemoteAddr = address + ":1234"
		r.AddCookie(&http.Cookie{Name: sessionCookie, Value: token})
		w := httptest.NewRecorder()
		slow.ServeHTTP(w, r)
		return w.Code
	}
	ann, bob := s.as("ann@example.com").token(), s.as("bob@example.com").token()
	var all sync.WaitGroup
	refused := make(chan struct{}, 2*maxWorking)
	for i := range 2 * maxWorking {
		all.Go(func() {
			if get(ann, fmt.Sprintf("192.0.2.%d", i%8)) == http.StatusServiceUnavailable {
				refused <- struct{}{}
			}
		})
		select { // one after the other, because a request that is refused has a place for a moment
		case <-entered:
		case <-refused:
		}
	}
	require.Equal(t, http.StatusOK, get(bob, "198.51.100.1"), "another tenant's page")
	require.Equal(t, http.StatusOK, s.browser().get("/login").status)
	close(release)
	all.Wait()
	require.Equal(t, http.StatusOK, get(ann, "192.0.2.1"), "its places are free again")
	require.Zero(t, s.pages.visiting.Held(s.a.TenantID()))
}
