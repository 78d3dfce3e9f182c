package api

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	idempotencyHeader = "Idempotency-Key"
	replayedHeader    = "Idempotency-Replayed"
	maxIdempotencyKey = 255 // bytes
)

// replayedHeaders are the headers that a replay repeats. All others belong to the current request.
var replayedHeaders = []string{"Content-Type", "Etag", "Location"}

// idempotent serves a POST with an Idempotency-Key. The first request with a key runs, and its
// answer, without secrets, is committed together with its changes before it is sent. Later requests
// get the stored answer. Internal errors are not stored, so that a repeat tries again.
func (a *admin) idempotent(w http.ResponseWriter, r *http.Request, op *huma.Operation, body []byte, next http.Handler) {
	key, p := idempotencyKey(r.Header.Values(idempotencyHeader))
	if p != nil {
		writeProblem(w, r, p)
		return
	}
	rec := &recorder{head: http.Header{}}
	serve := func(ctx context.Context) (tenants.Answer, error) {
		q := requestFrom(ctx)
		if p := q.takeTurn(r, len(body)); p != nil { // next decodes the body again
			return tenants.Answer{}, p
		}
		next.ServeHTTP(rec, r.WithContext(ctx))
		q.endTurn() // also if it was not valid: the store has its turn
		return rec.answer(op)
	}
	kept, err := a.store.Idempotent(r.Context(), actorFrom(r.Context()), key, requestHash(r, body), serve)
	var reused *tenants.InvalidError
	switch {
	case errors.As(err, &reused): // its form was checked before
		writeProblem(w, r, newProblem(http.StatusUnprocessableEntity, codeIdempotencyKeyReused,
			"This Idempotency-Key was used for another request. Use a new one for each operation."))
	case err != nil:
		writeProblem(w, r, a.problem(r.Context(), err))
	case kept != nil:
		replay(w, kept.Status, kept.Header, kept.Body)
	default:
		maps.Copy(w.Header(), rec.head)
		w.WriteHeader(rec.status)
		_, _ = w.Write(rec.body.Bytes()) // if this fails, the client has disconnected
	}
}

// answer returns the answer in the form that is stored for replays.
func (r *recorder) answer(op *huma.Operation) (tenants.Answer, error) {
	kept := tenants.Answer{Status: r.status, Header: http.Header{}, Body: r.body.Bytes()}
	if redact, ok := op.Metadata[metaRedact].(func([]byte) ([]byte, error)); ok && r.status < http.StatusBadRequest {
		var err error
		if kept.Body, err = redact(kept.Body); err != nil {
			return kept, err
		}
	}
	for _, name := range replayedHeaders {
		if values := r.head.Values(name); len(values) > 0 {
			kept.Header[name] = values
		}
	}
	return kept, nil
}

func replay(w http.ResponseWriter, status int, header http.Header, body []byte) {
	maps.Copy(w.Header(), header)
	w.Header().Set(replayedHeader, "true")
	w.WriteHeader(status)
	_, _ = w.Write(body) // if this fails, the client has disconnected
}

func idempotencyKey(values []string) (string, *Problem) {
	if len(values) > 1 {
		return "", invalidHeader(idempotencyHeader, isRepeated)
	}
	key := values[0]
	notPrintable := func(c byte) bool { return c < ' ' || c > '~' }
	if key == "" || len(key) > maxIdempotencyKey || slices.ContainsFunc([]byte(key), notPrintable) {
		return "", invalid(wrongField("header:"+idempotencyHeader, limit.MustBe("1 to 255 printable ASCII characters")))
	}
	return key, nil
}

// requestHash identifies a request by its content, not by the spelling of its headers.
func requestHash(r *http.Request, body []byte) [32]byte {
	h := sha256.New()
	for _, part := range [][]byte{[]byte(r.Method), []byte(r.URL.RequestURI()), body} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		h.Write(size[:])
		h.Write(part)
	}
	return [32]byte(h.Sum(nil))
}

// recorder records an answer that must be stored before it is sent.
type recorder struct {
	head   http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.head }

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}
