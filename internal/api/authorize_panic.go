package api

import (
	"context"
	"net/http"

	"weir/internal/check"
)

// If Weir panics over a request of a gateway, nothing was decided, and the route's fail setting
// says what the gateway is told, as with any other failure of Weir. There is one exception. A
// panic while the request is read may be caused by what a customer has sent. That is a denial, or
// such a request would be a way around every limit of a route that fails open.

// recoverAuthorize ends the answer to a request of a gateway over net/http. Defer recoverAuthorize
// itself: recover works only in the deferred function.
func (s *server) recoverAuthorize(r *http.Request, sc *scratch) {
	fault := recover()
	if fault == nil {
		scratches.put(sc) // not after a panic: a pipeline may still use it
		return
	}
	q := requestFrom(r.Context())
	if fault == http.ErrAbortHandler || q.status != 0 { // net/http compares it so, too
		panic(fault)
	}
	s.notePanic(r.Context(), q, fault)
	h := q.Header()
	for name := range h {
		if name != "X-Request-Id" && name != "Connection" {
			delete(h, name)
		}
	}
	h[decisionHeader] = undecided
	ask := &sc.authorize
	if ask.reading {
		fresh := scratches.get()
		defer scratches.put(fresh)
		fresh.encodeRefusal(s.style, requestInvalid)
		fresh.headers.write(h, q.headers[1:])
		q.code = string(requestInvalid)
		q.sendJSON(ask.deniedStatus, fresh.out)
		return
	}
	p := ask.undecidedAs(internalProblem())
	s.answerUndecided(r, p, s.failsOpenAfterPanic(r.Context(), ask, p))
}

// failsOpenAfterPanic is failsOpen, which may run into the same panic.
func (s *server) failsOpenAfterPanic(ctx context.Context, ask *authorizeQuestion, p *Problem) (open bool) {
	defer func() {
		if recover() != nil {
			open = false
		}
	}()
	return s.failsOpen(ctx, ask, p)
}

// encodeRefusal leaves the answer to a denial that no rule made in sc.
func (sc *scratch) encodeRefusal(style HeaderStyle, code check.Code) {
	sc.refuse(code)
	sc.encodeCheck(style, &sc.refused[0])
}
