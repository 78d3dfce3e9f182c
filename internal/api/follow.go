package api

import (
	"context"
	"net/http"
)

// followed answers a write only when this instance acts on it: whoever makes a rule and checks
// against it in the next breath, at the same instance, finds it. The others hear of it as of every
// change, within a second; so does this one where it cannot be known in time.
//
// An answer reaches its reader when the handler has returned, so waiting after next is enough.
func (a *admin) followed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		if q := requestFrom(r.Context()); q.status >= 300 {
			return
		}
		a.follow(r.Context(), actorFrom(r.Context()).TenantID())
	})
}

type afterKey struct{}

// afterCommit has something done once what the request has changed is kept, and not otherwise: a
// mail cannot be called back. A replay of an answer does nothing again.
func afterCommit(ctx context.Context, do func()) {
	list := ctx.Value(afterKey{}).(*[]func())
	*list = append(*list, do)
}

// committing does what afterCommit was given when the answer says that all went well.
func committing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var list []func()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), afterKey{}, &list)))
		if requestFrom(r.Context()).status >= 300 {
			return
		}
		for _, do := range list {
			do()
		}
	})
}
