package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"weir/internal/check"
	"weir/internal/route"
)

// A request to /v1/authorize/{route} is the request of the gateway's customer, or describes it. The
// route (package route) turns it into a check. Of the headers Weir-*, only Weir-Key is read,
// because all others may be the customer's.

// via has the parts of a request to a route besides its headers.
type via struct {
	method []byte
	path   []byte // after /v1/authorize, with the query: /edge/orders/1?page=2
	conn   net.Conn
	remote string          // of a request of net/http, which has no conn
	route  *route.Compiled // the route with that name; nil: not found, or not looked up yet
}

// named reports whether the request names a route.
func (v *via) named() bool { return len(v.path) > 0 }

// cut splits the path into the route's name and the URI below it.
func (v *via) cut() (name, target []byte) {
	name = v.path[1:]
	if end := bytes.IndexAny(name, "/?"); end >= 0 {
		name, target = name[:end], name[end:]
		if target[0] == '?' {
			target = nil
		}
	}
	return name, target
}

// find looks up the route.
func (v *via) find(policy *check.Policy) *Problem {
	name, _ := v.cut()
	if v.route = policy.Route(name); v.route == nil {
		return newProblem(http.StatusNotFound, codeNotFound, "The tenant has no route of this name. GET /v1/routes lists the routes.")
	}
	return nil
}

// decodeRoute evaluates the route for the request.
func (q *authorizeQuestion) decodeRoute(policy *check.Policy, sc *scratch) ([]check.Request, *Problem) {
	if p := q.via.find(policy); p != nil {
		return nil, p
	}
	r, in := q.via.route, &sc.route
	q.deniedStatus = r.DeniedStatus
	in.Reset()
	in.Method = q.via.method
	_, in.Target = q.via.cut()
	for lines := q.lines; len(lines) > 0; {
		name, value, rest := lines.next()
		lines = rest
		r.Take(in, name, value)
	}
	if r.NeedsAddress() {
		in.Address = q.client()
	}
	d := r.Decide(in)
	switch d.Verdict {
	case route.Refuse:
		sc.refuse(check.Code(d.Code))
		sc.refused[0].Resource, sc.refused[0].Cost = d.Resource, d.Cost
		return nil, nil
	case route.Allow:
		sc.refused = append(sc.refused[:0], check.Decision{Allowed: true, Resource: d.Resource, Cost: d.Cost, Deciding: -1})
		return nil, nil
	case route.Check:
	}
	req := &sc.checks[0]
	*req = check.Request{Subject: string(d.Subject), Resource: d.Resource, Cost: d.Cost}
	if len(d.Attributes) > 0 {
		req.Attributes = make([]check.Attribute, len(d.Attributes))
		for i, a := range d.Attributes {
			req.Attributes[i] = check.Attribute{Name: a.Name, Value: string(a.Value)}
		}
	}
	return sc.checks[:], nil
}

// client returns the address of the gateway's customer. The gateway has a key of the tenant, so its
// own entry at the end of X-Forwarded-For is trusted.
func (q *authorizeQuestion) client() netip.Addr {
	var forwarded []string
	for lines := q.lines; len(lines) > 0; {
		name, value, rest := lines.next()
		lines = rest
		if named(name, "x-forwarded-for") {
			forwarded = append(forwarded, string(value))
		}
	}
	return q.proxies.Behind(q.via.peer(), forwarded)
}

// peer returns the address of the connection.
func (v *via) peer() netip.Addr {
	if v.conn == nil {
		peer, _ := netip.ParseAddrPort(v.remote) // as net/http or a proxy's handler wrote it
		return peer.Addr()
	}
	return addressOfConn(v.conn)
}

// addressOfConn returns the address at the other end of a connection.
func addressOfConn(conn net.Conn) netip.Addr {
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr()
	}
	return netip.Addr{} // not a network connection
}

// addressOf returns the address of the client of a request, as net/http or a proxy's handler wrote
// it.
func addressOf(r *http.Request) netip.Addr {
	peer, _ := netip.ParseAddrPort(r.RemoteAddr)
	return peer.Addr()
}

// allLines returns the lines of all headers of a request of net/http, which stores Host separately.
func allLines(r *http.Request, b []byte) headerLines {
	b = appendLines(b, "Host", []string{r.Host})
	for name, values := range r.Header {
		b = appendLines(b, name, values)
	}
	return b
}

func appendLines(b []byte, name string, values []string) []byte {
	for _, value := range values {
		b = append(b, name...)
		b = append(b, ": "...)
		b = append(b, value...)
		b = append(b, "\r\n"...)
	}
	return b
}

// routePath returns what follows /v1/authorize in the request line, unchanged; "" for nothing or
// only a query.
func routePath(r *http.Request) string {
	target := r.RequestURI
	if !strings.HasPrefix(target, "/") { // in a proxy's form
		target = r.URL.EscapedPath()
	}
	target = strings.TrimPrefix(target, authorizePath)
	if !strings.HasPrefix(target, "/") {
		return ""
	}
	return target
}

// failsOpen reports whether the route allows a request about which nothing was decided. It looks up
// the route if necessary, and does not wait.
func (s *server) failsOpen(ctx context.Context, q *authorizeQuestion, p *Problem) bool {
	if !q.via.named() || p.Status != http.StatusServiceUnavailable {
		return false
	}
	if q.via.route == nil {
		key, p := q.credentials()
		if p != nil {
			return false
		}
		actor, p := authenticateKey(ctx, s.Authenticator, key)
		if p != nil {
			return false
		}
		policy := s.Policies.Loaded(actor.TenantID())
		if policy == nil || q.via.find(policy) != nil {
			return false
		}
	}
	return q.via.route.Fail == route.FailOpen
}
