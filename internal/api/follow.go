package api

import (
	"bytes"
	"context"
	"net/http"

	"weir/internal/limit"
)

// committed sends the answer to a write after three steps: the change is committed, the functions
// of afterCommit have run, and this instance has applied the change. A check that a client then
// sends to the same instance uses the change. Other instances apply it within a second. So does
// this instance if it cannot apply it in time.
//
// The answer is buffered until then, because net/http would send what exceeds its buffer.
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

// followTenant records that the request has changed a tenant other than the actor's.
func followTenant(ctx context.Context, tenant limit.TenantID) {
	others := ctx.Value(followKey{}).(*[]limit.TenantID)
	*others = append(*others, tenant)
}

// heldBody is a ResponseWriter that buffers everything until send.
type heldBody struct {
	http.ResponseWriter
	status int // 0 until it is written
	body   bytes.Buffer
}

// WriteHeader stores the status.
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
	_, _ = h.ResponseWriter.Write(h.body.Bytes()) // an error means that the client has disconnected
}

// Unwrap lets http.ResponseController reach the connection.
func (h *heldBody) Unwrap() http.ResponseWriter { return h.ResponseWriter }

type afterKey struct{}

// afterCommit runs a function after the request's change was committed, and not otherwise, because
// a mail cannot be recalled. It does not run for a replay of an answer.
func afterCommit(ctx context.Context, do func()) {
	list := ctx.Value(afterKey{}).(*[]func())
	*list = append(*list, do)
}
