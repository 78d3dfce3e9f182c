package origin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// Proxies are the networks of trusted proxies in front of the service. Their X-Forwarded-For has
// the client of a request. If there are none, X-Forwarded-For is ignored.
type Proxies []netip.Prefix

// ParseProxies parses a list of networks (192.0.2.0/24) and addresses, separated by commas.
func ParseProxies(list string) (Proxies, error) {
	var proxies Proxies
	for text := range strings.SplitSeq(list, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		if !strings.Contains(text, "/") {
			ip, err := netip.ParseAddr(text)
			if err != nil || ip.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an address nor a network such as 192.0.2.0/24", text)
			}
			ip = ip.Unmap()
			proxies = append(proxies, netip.PrefixFrom(ip, ip.BitLen()))
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil || network.Addr().Is4In6() {
			return nil, fmt.Errorf("%q is neither an address nor a network such as 192.0.2.0/24", text)
		}
		proxies = append(proxies, network.Masked())
	}
	return proxies, nil
}

// Handler sets Request.RemoteAddr for next: to the address of the client with port 0 if a trusted
// proxy forwarded the request, and otherwise to that of the connection.
func (p Proxies) Handler(next http.Handler) http.Handler {
	if len(p) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if forwarded := r.Header["X-Forwarded-For"]; len(forwarded) > 0 {
			if client, ok := p.client(r.RemoteAddr, forwarded); ok {
				clone := r.WithContext(context.WithValue(r.Context(), peerKey{}, r.RemoteAddr)) // the original stays unchanged
				clone.RemoteAddr = net.JoinHostPort(client.String(), "0")
				r = clone
			}
		}
		next.ServeHTTP(w, r)
	})
}

type peerKey struct{}

// Peer returns the address of the connection of a request, also behind Handler.
func Peer(r *http.Request) netip.Addr {
	remote, forwarded := r.Context().Value(peerKey{}).(string)
	if !forwarded {
		remote = r.RemoteAddr
	}
	peer, _ := netip.ParseAddrPort(remote)
	return peer.Addr()
}

// client returns the address that sent a request. Each proxy appends the address that it received
// the request from. The list is read from its end, as long as the address that wrote an entry is
// trusted. Entries to the left, which the first untrusted address wrote, are ignored.
func (p Proxies) client(remote string, forwarded []string) (client netip.Addr, ok bool) {
	client, ok = parseHop(remote)
	if !ok || !p.trusts(client) {
		return netip.Addr{}, false
	}
	return p.walk(client, forwarded), true
}

// Client returns the address that sent a request over a connection from remote: the one that the
// proxies report if remote is a trusted one, and otherwise remote.
func (p Proxies) Client(remote netip.Addr, forwarded []string) netip.Addr {
	remote = remote.Unmap().WithZone("")
	if !p.trusts(remote) {
		return remote
	}
	return p.walk(remote, forwarded)
}

// Behind returns the address of the client of a gateway that is trusted for another reason than its
// address, such as its key.
func (p Proxies) Behind(gateway netip.Addr, forwarded []string) netip.Addr {
	return p.walk(gateway.Unmap().WithZone(""), forwarded)
}

// walk goes from a trusted hop to the client.
func (p Proxies) walk(client netip.Addr, forwarded []string) netip.Addr {
	for i := len(forwarded) - 1; i >= 0; i-- {
		for list, more := forwarded[i], true; more; {
			var hop string
			if comma := strings.LastIndexByte(list, ','); comma >= 0 {
				list, hop = list[:comma], list[comma+1:]
			} else {
				hop, more = list, false
			}
			ip, ok := parseHop(strings.TrimSpace(hop))
			if !ok { // a trusted proxy that does not report its client: use the last known address
				return client
			}
			client = ip
			if !p.trusts(client) {
				return client
			}
		}
	}
	return client
}

func (p Proxies) trusts(ip netip.Addr) bool {
	for _, network := range p {
		if network.Contains(ip) {
			return true
		}
	}
	return false
}

// parseHop reads an address, with a port or without.
func parseHop(text string) (netip.Addr, bool) {
	ip, err := netip.ParseAddr(strings.Trim(text, "[]"))
	if err != nil {
		withPort, err := netip.ParseAddrPort(text)
		if err != nil {
			return netip.Addr{}, false
		}
		ip = withPort.Addr()
	}
	return ip.Unmap().WithZone(""), true
}
