package api

import (
	"bytes"
	"context"
	"net/http"

	"weir/internal/limit"
)

// committed answers a write when the change is committed, what afterCommit was given is done, and
// this instance has applied the change: a check that a client sends to the same instance after the
// answer finds it. Other instances learn of it within a second, like of every change. So does this
// instance if it cannot apply the change in time.
//
// The answer is held back until then. net/http would send at once what exceeds its buffer.
func (a *admin) committed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		held := &heldBody{ResponseWriter: w}
		var list []func()
		var others []limit.TenantID
		ctx := context.WithValue(r.Context(), afterKey{}, &list)
		next.ServeHTTP(held, r.WithContext(context.WithValue(ctx, followKey{}, &others)))
		if held.status < http.StatusMultipleChoices {
			for _, do := range list {
				do()
			}
			a.followAll(r.Context(), append(others, actorFrom(r.Context()).TenantID()))
		}
		held.send()
	})
}

func (a *admin) followAll(ctx context.Context, changed []limit.TenantID) {
	if a.follow == nil {
		return
	}
	for _, tenant := range changed {
		a.follow(ctx, tenant)
	}
}

type followKey struct{}

// followTenant notes that the request has changed a tenant that is not the actor's own.
func followTenant(ctx context.Context, tenant limit.TenantID) {
	others := ctx.Value(followKey{}).(*[]limit.TenantID)
	*others = append(*others, tenant)
}

// heldBody is a ResponseWriter that sends nothing before send.
type heldBody struct {
	http.ResponseWriter
	status int // 0: nothing was written
	body   bytes.Buffer
}

// WriteHeader notes the status.
func (h *heldBody) WriteHeader(status int) {
	if h.status == 0 {
		h.status = status
	}
}

func (h *heldBody) Write(b []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.body.Write(b)
}

func (h *heldBody) send() {
	if h.status == 0 {
		return
	}
	h.ResponseWriter.WriteHeader(h.status)
	_, _ = h.ResponseWriter.Write(h.body.Bytes()) // an error means that the client is gone
}

// Unwrap lets http.ResponseController reach the connection.
func (h *heldBody) Unwrap() http.ResponseWriter { return h.ResponseWriter }

type afterKey struct{}

// afterCommit has something done once what the request has changed is kept, and not otherwise: a
// mail cannot be called back. A replay of an answer does nothing again.
func afterCommit(ctx context.Context, do func()) {
	list := ctx.Value(afterKey{}).(*[]func())
	*list = append(*list, do)
}
