package api

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/origin"
	"weir/internal/places"
)

// /v1/authorize answers subrequests of gateways: nginx's auth_request, Caddy's forward_auth,
// Traefik's forwardAuth, Envoy's ext_authz and others. The check is in the headers, and never in a
// document that a header could break out of (authorize_read.go). The gateway needs only the status:
// 204 allows the customer's request, any other status does not.
//
// A customer must not be able to switch the limiter off. Every error that a customer can cause is
// therefore a decision: a missing or unusable subject is a denial. A request is undecided only
// after a mistake of the gateway or a failure of Weir.

const (
	authorizePath = "/v1/authorize"
	keyHeader     = "Weir-Key"
)

// The codes of denials without a rule. They count on no limit.
const (
	subjectMissing   check.Code = "SUBJECT_MISSING"
	subjectInvalid   check.Code = "SUBJECT_INVALID"
	resourceInvalid  check.Code = "RESOURCE_INVALID"
	attributeInvalid check.Code = "ATTRIBUTE_INVALID"
	requestInvalid   check.Code = "REQUEST_INVALID"

	resourceNotAllowed check.Code = "RESOURCE_NOT_ALLOWED"
)

// isAuthorize reports whether a path is /v1/authorize or below it.
func isAuthorize(path string) bool {
	rest, ok := strings.CutPrefix(path, authorizePath)
	return ok && (rest == "" || rest[0] == '/')
}

// gateways handles requests for /v1/authorize before the router, which supports only some methods.
func (s *server) gateways(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, authorizePath) && isAuthorize(r.URL.EscapedPath()) { // to escape takes long
			s.authorize(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorizeQuestion is a request to /v1/authorize, on any transport.
type authorizeQuestion struct {
	key          string // "": none was sent
	lines        headerLines
	deniedStatus int
	unreadable   *Problem // an error that the transport found before anything else
	via          via
	gateway      netip.Addr     // of the connection
	proxies      origin.Proxies // for a route that counts by address
	reading      bool           // what a customer may have sent is being read
}

func (q *authorizeQuestion) credentials() (string, *Problem) {
	q.reading = false
	switch {
	case q.unreadable != nil:
		return "", q.unreadable
	case q.key == "":
		return "", unauthorized(codeMissingKey, "Send the API key as \"Weir-Key: KEY\".")
	}
	return q.key, nil
}

func (q *authorizeQuestion) read(*scratch) *Problem { return nil } // the body is ignored

// turns are none without a route: each header is then read once, as it is.
func (q *authorizeQuestion) turns(bodies *bodyTurns, _ *scratch) *places.Turns[limit.TenantID] {
	if !q.via.named() {
		return nil
	}
	return turnsFrom(bodies.small, len(q.lines)+len(q.via.path), largeCheck)
}

func (q *authorizeQuestion) caller() netip.Addr {
	if q.via.conn != nil {
		return addressOfConn(q.via.conn)
	}
	return q.gateway
}

// refuseResource denies: the gateway's customer may have chosen the resource.
func (q *authorizeQuestion) refuseResource(sc *scratch, _ string) *Problem {
	sc.refuse(resourceNotAllowed)
	return nil
}

func (q *authorizeQuestion) together() bool { return false }

func (q *authorizeQuestion) planField(int) string { return "header:Weir-Plan" }

// encode stores the answer in sc: a denial has the body of a check, an allowed request has no body.
func (q *authorizeQuestion) encode(style HeaderStyle, decisions []check.Decision, sc *scratch) {
	sc.encodeCheck(style, &decisions[0])
	if decisions[0].Allowed {
		sc.out = sc.out[:0]
	}
}

// status returns the status of a decision.
func (q *authorizeQuestion) status(allowed bool) int {
	if allowed {
		return http.StatusNoContent
	}
	return q.deniedStatus
}

// undecidedAs returns the problem in the form for gateways. A mistake of the gateway keeps its
// status. Every other status becomes 503, because a 429 would look like a denial.
func (q *authorizeQuestion) undecidedAs(p *Problem) *Problem {
	if p.Status == http.StatusTooManyRequests || p.Status >= http.StatusInternalServerError {
		p.Status = http.StatusServiceUnavailable
	}
	return p
}

// authorize answers /v1/authorize over net/http.
func (s *server) authorize(w http.ResponseWriter, r *http.Request) {
	q := requestFrom(r.Context())
	q.hot = routeAuthorize
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		// The body is never read. It is unknown whether the gateway sends it, so no further request
		// can be read from this connection.
		q.Header()["Connection"] = closeConnection
	}
	sc := scratches.get()
	defer s.recoverAuthorize(r, sc)
	ask := &sc.authorize
	ask.fromHTTP(r, sc)
	ask.proxies = s.proxies
	decisions, p := s.decide(r.Context(), ask, sc)
	if p != nil {
		s.undecided(r, ask, p)
		return
	}
	sc.headers.write(q.Header(), q.headers[1:])
	d := &decisions[0]
	if len(d.Rules) == 0 && !d.Allowed {
		q.code = string(d.Code)
	}
	if d.Allowed {
		q.Header()["Cache-Control"] = noStore
		q.WriteHeader(http.StatusNoContent)
		return
	}
	q.sendJSON(ask.status(false), sc.out)
}

// undecided answers a request without a decision.
func (s *server) undecided(r *http.Request, ask *authorizeQuestion, p *Problem) {
	p = ask.undecidedAs(p)
	s.answerUndecided(r, p, s.failsOpen(r.Context(), ask, p))
}

func (s *server) answerUndecided(r *http.Request, p *Problem, open bool) {
	q := requestFrom(r.Context())
	if open {
		if slices.Contains(pausedCodes, p.Code) {
			q.restBefore(p)
		}
		q.code = p.Code
		q.Header()["Cache-Control"] = noStore
		q.WriteHeader(http.StatusNoContent)
		return
	}
	q.refuse(r, p)
}

// shedGateway answers a request to /v1/authorize if there are too many concurrent requests.
func (s *server) shedGateway(r *http.Request) {
	requestFrom(r.Context()).hot = routeAuthorize
	sc := scratches.get()
	defer scratches.put(sc)
	sc.authorize.fromHTTP(r, sc)
	s.undecided(r, &sc.authorize, overloaded())
}

// closeConnection makes net/http close the connection after the answer.
var closeConnection = []string{"close"}

// fromHTTP reads the question from a request of net/http.
func (q *authorizeQuestion) fromHTTP(r *http.Request, sc *scratch) {
	*q = authorizeQuestion{deniedStatus: http.StatusTooManyRequests, reading: true, gateway: origin.Peer(r)}
	if path := routePath(r); path != "" {
		q.via = via{path: []byte(path), method: []byte(r.Method), remote: r.RemoteAddr}
	}
	keys := r.Header[keyHeader]
	if len(keys) > 1 {
		q.unreadable = invalidHeader(keyHeader, isRepeated)
		return
	}
	if len(keys) == 1 {
		q.key = keys[0]
	}
	if q.via.named() {
		sc.body = allLines(r, sc.body[:0])
		q.lines = sc.body
		return
	}
	switch values := r.Header["Weir-Denied-Status"]; {
	case len(values) == 0 || len(values) == 1 && values[0] == "429":
	case len(values) == 1 && values[0] == "403":
		q.deniedStatus = http.StatusForbidden
	default:
		q.unreadable = invalidHeader("Weir-Denied-Status", limit.MustBe("403 or 429, once"))
		return
	}
	sc.body = sc.body[:0]
	for name, values := range r.Header {
		if strings.HasPrefix(name, "Weir-") {
			sc.body = appendLines(sc.body, name, values)
		}
	}
	q.lines = sc.body
}
