package browser

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/chromedp/cdproto/network"
	"github.com/stretchr/testify/assert"

	"weir/web"
)

// maxWeight is the maximum size of the first load of a page, in bytes on the wire.
const maxWeight = 200 << 10

// light verifies the size, origin and caching of what the page loaded. It must be called after the
// first load, with an empty cache.
func (p *page) light() *page {
	p.t.Helper()
	p.eventually(func() error {
		for _, r := range p.watch.loaded() {
			if r.status == 0 {
				return fmt.Errorf("no answer for %s", r.url)
			}
		}
		return nil
	})
	total, documents := 0, 0
	var list strings.Builder
	for _, r := range p.watch.loaded() {
		path := strings.TrimPrefix(r.url, p.s.url)
		total += r.bytes
		fmt.Fprintf(&list, "%7d %s\n", r.bytes, path)
		switch {
		case r.kind == network.ResourceTypeDocument:
			documents++
			if !strings.HasPrefix(path, "/playground") && path != "/docs" { // the same for everybody, so they may be cached publicly
				assert.Equal(p.t, "no-store", header(r, "Cache-Control"), path)
			}
		case strings.HasPrefix(path, web.Prefix):
			assert.Equal(p.t, "public, max-age=31536000, immutable", header(r, "Cache-Control"), path)
		}
		if r.kind == network.ResourceTypeDocument || r.kind == network.ResourceTypeScript || r.kind == network.ResourceTypeStylesheet {
			assert.Equal(p.t, "gzip", header(r, "Content-Encoding"), path)
		}
	}
	assert.Equal(p.t, 1, documents, "a page is one document:\n%s", &list)
	assert.LessOrEqual(p.t, total, maxWeight, "%s weighs %d bytes:\n%s", p.watch.url(), total, &list)
	return p
}

func header(r request, name string) string {
	for key, value := range r.header {
		if http.CanonicalHeaderKey(key) == name {
			return fmt.Sprint(value)
		}
	}
	return ""
}
