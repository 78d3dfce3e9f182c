package api

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

// List is one page of a list.
type List[T any] struct {
	Items      []T     `json:"items" nullable:"false" doc:"Newest first, unless the operation says otherwise"`
	NextCursor *string `json:"next_cursor" doc:"Send it as cursor to get the next page; null on the last page"`
}

// PageParams are the query parameters of every list.
type PageParams struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"200" default:"50" doc:"Maximum number of items, 1 to 200"`
	Cursor string `query:"cursor" doc:"The next_cursor of the previous page"`
}

// cursors creates and reads cursors. A cursor contains the position at which a page ended, and a
// code that only this deployment can compute from the position, the tenant, the list and its
// filter. A cursor that was edited, or that belongs to another tenant or list, is therefore
// refused.
type cursors struct {
	key []byte // of the deployment, the same on all instances
}

const cursorCodeBytes = 16

// open returns the requested page. list identifies the list with its filter.
func (c *cursors) open(ctx context.Context, list string, p PageParams) (tenants.Page, error) {
	page := tenants.Page{Limit: p.Limit}
	if p.Cursor == "" {
		return page, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(p.Cursor)
	if err != nil || len(raw) <= cursorCodeBytes {
		return page, errInvalidCursor()
	}
	code, after := raw[:cursorCodeBytes], string(raw[cursorCodeBytes:])
	if !hmac.Equal(code, c.code(actorFrom(ctx).TenantID(), list, after)) {
		return page, errInvalidCursor()
	}
	page.After = after
	return page, nil
}

// next returns the cursor of the page after after, or nil at the end.
func (c *cursors) next(ctx context.Context, list, after string) *string {
	if after == "" {
		return nil
	}
	code := c.code(actorFrom(ctx).TenantID(), list, after)
	return ptr(base64.RawURLEncoding.EncodeToString(append(code, after...)))
}

// code authenticates a cursor. Each part is preceded by its length, so that different parts have
// different texts.
func (c *cursors) code(tenant uuid.UUID, list, after string) []byte {
	mac := hmac.New(sha256.New, c.key)
	for _, part := range []string{"cursor/1", string(tenant[:]), list, after} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		mac.Write(size[:])
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)[:cursorCodeBytes]
}

func errInvalidCursor() *Problem {
	p := newProblem(http.StatusBadRequest, codeInvalidCursor,
		"cursor must be the next_cursor of a page of this list with the same filter. Start again without one.")
	p.Errors = []ProblemField{{
		Pointer: "query:cursor", Message: "must be the next_cursor of a page of this list with the same filter", Fix: "Start again without one.",
	}}
	return p
}

// listPage answers one page of the list with this name, which identifies the list and its filter.
func listPage[S, T any](
	ctx context.Context, a *admin, name string, params PageParams, answer func(S) T,
	fetch func(tenants.Page) (items []S, next string, err error),
) (*page[T], error) {
	p, err := a.cursors.open(ctx, name, params)
	if err != nil {
		return nil, err
	}
	items, after, err := fetch(p)
	if err != nil {
		return nil, err
	}
	out := &page[T]{Body: List[T]{Items: make([]T, len(items))}}
	for i, item := range items {
		out.Body.Items[i] = answer(item)
	}
	out.Body.NextCursor = a.cursors.next(ctx, name, after)
	return out, nil
}
