package browser

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

// embedder is a site of a tenant that shows an address in a frame. Its pages are on localhost and
// the customer page is on 127.0.0.1: for a browser, those are two sites.
func (w *world) embedder(address string) *service {
	w.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" {
			out.WriteHeader(http.StatusNoContent) // the icon
			return
		}
		out.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprintf(out, `<!doctype html><html lang="en"><title>Shop</title><h1>Your account</h1>
			<iframe title="Limits" width="700" height="500" src="%s"></iframe>`, html.EscapeString(address))
	}))
	w.t.Cleanup(server.Close)
	s := *w.service
	s.url = "http://localhost" + server.URL[strings.LastIndex(server.URL, ":"):]
	return &s
}

// frame returns the frame of another site whose address satisfies a condition, once there is one.
// No other test has frames.
func (p *page) frame(of func(address string) bool) *page {
	p.t.Helper()
	var found *target.Info
	p.eventually(func() error {
		targets, err := chromedp.Targets(p.ctx)
		if err != nil {
			return err
		}
		var seen []string
		for _, t := range targets {
			if t.Type == "iframe" && of(t.URL) {
				found = t
				return nil
			}
			seen = append(seen, t.Type+" "+t.URL)
		}
		return errors.New("no such frame; there are " + strings.Join(seen, ", "))
	})
	ctx, cancel := chromedp.NewContext(p.ctx, chromedp.WithTargetID(found.TargetID))
	p.t.Cleanup(cancel)
	return &page{t: p.t, s: p.s, ctx: ctx, watch: p.watch}
}

// The customer page works in a frame of another site, which has its own cookies, where the tenant
// allows the origin. Other origins are refused, and their frames use up nothing.
func TestCustomerPageInAFrame(t *testing.T) {
	t.Parallel()
	w := newTenant(t)
	w.rule("exports", 10)
	weir := strings.Replace(w.url, "localhost", "127.0.0.1", 1)
	link := func() (id, address string) {
		made, token, err := w.store.CreatePortalLink(t.Context(), w.actor, tenants.NewPortalLink{Subject: "ada"})
		require.NoError(t, err)
		return made.ID.String(), weir + tenants.PortalLinkPath(token)
	}
	used := func(id string) bool {
		links, _, err := w.store.PortalLinks(t.Context(), w.actor, "ada", tenants.Page{})
		require.NoError(t, err)
		for i := range links {
			if links[i].ID.String() == id {
				return links[i].UsedAt != nil
			}
		}
		require.Fail(t, "the link is not listed")
		return false
	}

	id, address := link()
	shop := w.embedder(address)
	_, err := w.store.EditPortal(t.Context(), w.actor, tenants.Match{}, func(p *tenants.Portal) error {
		p.FrameOrigins = []string{shop.url}
		return nil
	})
	require.NoError(t, err)
	p := newPage(t, shop).open("/")
	frame := p.frame(func(address string) bool {
		return strings.HasPrefix(address, weir+"/portal/") && !strings.Contains(address, "/open/")
	})
	text := func() error {
		text, err := eval[string](frame, "document.body.innerText")
		if err == nil && !strings.Contains(text, "You can use 10 units") {
			err = errors.New("the frame says " + text)
		}
		return err
	}
	p.eventually(text) // the link has led to this page, which only the cookie opens
	require.True(t, used(id))
	p.shot("customer-page-frame")

	p.faultsOf("a request to another host: " + weir)

	id, address = link()
	elsewhere := w.embedder(address)
	q := newPage(t, elsewhere).open("/")
	var faults []string
	require.Eventually(t, func() bool {
		faults = append(faults, q.watch.faults()...)
		return strings.Contains(strings.Join(faults, "\n"), "frame-ancestors "+shop.url) && strings.Contains(strings.Join(faults, "\n"), "net::ERR_BLOCKED_BY_RESPONSE")
	}, patience, tick, "%q", faults)
	require.False(t, used(id))
	for _, fault := range faults {
		require.Regexp(t, "a request to another host: "+regexp.QuoteMeta(weir)+"|frame-ancestors|net::ERR_BLOCKED_BY_RESPONSE", fault)
	}
}

// faultsOf takes the faults of the tab, which must be of these kinds.
func (p *page) faultsOf(kinds ...string) {
	p.t.Helper()
	for _, fault := range p.watch.faults() {
		known := false
		for _, kind := range kinds {
			known = known || strings.Contains(fault, kind)
		}
		require.True(p.t, known, fault)
	}
}
