package api

import (
	"net/http"
	"strings"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/origin"
)

// /v1/authorize answers subrequests of gateways: nginx's auth_request, Caddy's forward_auth,
// Traefik's forwardAuth, Envoy's ext_authz and others. What is asked comes in headers, never in a
// document that a header could break out of (authorize_read.go). The status alone is the answer:
// 204 lets the customer's request pass, anything else does not.
//
// A customer must not be able to switch the limiter off. Whatever a customer can cause is therefore
// a decision: a subject that is missing or cannot be used is a denial. Only mistakes of the gateway
// and failures of Weir leave a request undecided.

const (
	authorizePath = "/v1/authorize"
	keyHeader     = "Weir-Key"
)

// The codes of denials that no rule made. They do not count on any limit.
const (
	subjectMissing   check.Code = "SUBJECT_MISSING"
	subjectInvalid   check.Code = "SUBJECT_INVALID"
	resourceInvalid  check.Code = "RESOURCE_INVALID"
	attributeInvalid check.Code = "ATTRIBUTE_INVALID"
	requestInvalid   check.Code = "REQUEST_INVALID"
)

// isAuthorize reports whether a path is /v1/authorize or below it.
func isAuthorize(path string) bool {
	rest, ok := strings.CutPrefix(path, authorizePath)
	return ok && (rest == "" || rest[0] == '/')
}

// gateways takes requests for /v1/authorize out of the router, which knows only some methods.
func (s *server) gateways(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if isAuthorize(r.URL.EscapedPath()) {
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
	unreadable   *Problem // the transport found the request wrong before anything else
	via          via
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

func (q *authorizeQuestion) together() bool { return false }

func (q *authorizeQuestion) planField(int) string { return "header:Weir-Plan" }

// encode leaves the answer in sc: a denial has the body of a check, an allowed request has none.
func (q *authorizeQuestion) encode(style HeaderStyle, decisions []check.Decision, sc *scratch) {
	sc.encodeCheck(style, &decisions[0])
	if decisions[0].Allowed {
		sc.out = sc.out[:0]
	}
}

// status is the status of a decision.
func (q *authorizeQuestion) status(allowed bool) int {
	if allowed {
		return http.StatusNoContent
	}
	return q.deniedStatus
}

// undecidedAs is the problem as a gateway must see it. A mistake of the gateway keeps its status.
// For everything else the status is 503: a 429 would look like a denial.
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
		// The body is never read. Whether the gateway sends it at all is unknown, so nothing that
		// follows on this connection can be told from it.
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

// undecided answers a request about which nothing was decided.
func (s *server) undecided(r *http.Request, ask *authorizeQuestion, p *Problem) {
	p = ask.undecidedAs(p)
	s.answerUndecided(r, p, s.failsOpen(r.Context(), ask, p))
}

func (s *server) answerUndecided(r *http.Request, p *Problem, open bool) {
	q := requestFrom(r.Context())
	if open {
		q.code = p.Code
		q.Header()["Cache-Control"] = noStore
		q.WriteHeader(http.StatusNoContent)
		return
	}
	q.refuse(r, p)
}

// shedGateway answers a request to /v1/authorize for which there is no room.
func (s *server) shedGateway(r *http.Request) {
	requestFrom(r.Context()).hot = routeAuthorize
	sc := scratches.get()
	defer scratches.put(sc)
	sc.authorize.fromHTTP(r, sc)
	s.undecided(r, &sc.authorize, overloaded())
}

// closeConnection has net/http close the connection after the answer.
var closeConnection = []string{"close"}

// fromHTTP takes the question out of a request that net/http has read.
func (q *authorizeQuestion) fromHTTP(r *http.Request, sc *scratch) {
	*q = authorizeQuestion{deniedStatus: http.StatusTooManyRequests, reading: true}
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
