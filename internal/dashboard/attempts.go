package dashboard

import (
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"

	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// newThrottle returns a throttle that counts as d says.
func (d *dashboard) newThrottle(purpose string, rules ...limit.Rule) *throttle.Throttle {
	return throttle.New(purpose, d.Counters, d.Keys.Private, d.Now, rules...)
}

// accountKey returns a short key for an address of a login. All spellings of it have the same key.
func accountKey(email string) string {
	sum := sha256.Sum256([]byte(tenants.CanonicalEmail(email)))
	return hex.EncodeToString(sum[:16])
}

// addressOf returns the address of a connection; for IPv6 the network of 64 bits, which belongs to
// one customer.
func addressOf(remote string) string {
	return origin.Network(hostOf(remote))
}

// networksOf returns the networks of a client (origin.Networks).
func networksOf(r *http.Request) origin.Networks { return origin.WithinHost(hostOf(r.RemoteAddr)) }

// siteOf returns the widest of them.
func siteOf(r *http.Request) string { return origin.Site(hostOf(r.RemoteAddr)) }

// hostOf returns the address of a connection without its port.
func hostOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}
