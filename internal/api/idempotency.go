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

	"weir/internal/tenants"
)

const (
	idempotencyHeader = "Idempotency-Key"
	replayedHeader    = "Idempotency-Replayed"
	maxIdempotencyKey = 255 // bytes
)

// replayedHeaders are the headers of an answer that a replay repeats; the others belong to the
// request that is answered.
var replayedHeaders = []string{"Content-Type", "Etag", "Location"}

// idempotent serves a POST that carries an Idempotency-Key: the first request with a key runs, and
// its answer is kept before it is sent, without its secret; later ones get what was kept. What may
// come out otherwise next time (our faults) is not kept, so that a repetition tries again.
func (a *admin) idempotent(w http.ResponseWriter, r *http.Request, op *huma.Operation, body []byte, next http.Handler) {
	key, p := idempotencyKey(r.Header.Values(idempotencyHeader))
	if p != nil {
		writeProblem(w, r, p)
		return
	}
	actor := actorFrom(r.Context())
	state, err := a.store.BeginIdempotent(r.Context(), actor, key, requestHash(r, body))
	var reused *tenants.InvalidError
	switch {
	case errors.As(err, &reused): // its form has been checked
		writeProblem(w, r, newProblem(http.StatusUnprocessableEntity, codeIdempotencyKeyReused,
			"This Idempotency-Key was used for another request. Take a new one for each operation."))
		return
	case err != nil:
		writeProblem(w, r, a.problem(r.Context(), err))
		return
	}
	if state.Finished {
		replay(w, state.Status, state.Header, state.Body)
		return
	}
	// From here on the key is held, and must be let go of even where the client goes away.
	ctx := context.WithoutCancel(r.Context())
	kept := false
	defer func() {
		if !kept {
			a.logIfFailed(ctx, a.store.AbortIdempotent(ctx, actor, key, state))
		}
	}()
	rec := &recorder{head: http.Header{}}
	next.ServeHTTP(rec, r)
	if rec.status < http.StatusInternalServerError {
		kept = true
		a.logIfFailed(ctx, a.keep(ctx, op, key, state, rec))
	}
	maps.Copy(w.Header(), rec.head)
	w.WriteHeader(rec.status)
	_, _ = w.Write(rec.body.Bytes()) // the client is gone if this fails
}

// keep stores the answer for replays.
func (a *admin) keep(ctx context.Context, op *huma.Operation, key string, state tenants.IdempotentState, rec *recorder) error {
	body := rec.body.Bytes()
	if redact, ok := op.Metadata[metaRedact].(func([]byte) ([]byte, error)); ok && rec.status < http.StatusBadRequest {
		var err error
		if body, err = redact(body); err != nil {
			return err
		}
	}
	header := http.Header{}
	for _, name := range replayedHeaders {
		if values := rec.head.Values(name); len(values) > 0 {
			header[name] = values
		}
	}
	return a.store.FinishIdempotent(ctx, actorFrom(ctx), key, state, rec.status, header, body)
}

// logIfFailed logs that an idempotency key could be neither kept nor freed. The answer is true all
// the same; a repetition is told for a while that the first request is still running.
func (a *admin) logIfFailed(ctx context.Context, err error) {
	if err != nil {
		a.logger.ErrorContext(ctx, "idempotency key not settled", "request_id", requestID(ctx), "error", err)
	}
}

func replay(w http.ResponseWriter, status int, header http.Header, body []byte) {
	maps.Copy(w.Header(), header)
	w.Header().Set(replayedHeader, "true")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone if this fails
}

func idempotencyKey(values []string) (string, *Problem) {
	if len(values) > 1 {
		return "", newProblem(http.StatusBadRequest, codeInvalidHeader, "There is more than one Idempotency-Key header.")
	}
	key := values[0]
	notPrintable := func(c byte) bool { return c < ' ' || c > '~' }
	if key == "" || len(key) > maxIdempotencyKey || slices.ContainsFunc([]byte(key), notPrintable) {
		return "", invalid(ProblemField{Pointer: "header:" + idempotencyHeader, Message: "must be 1 to 255 printable ASCII characters"})
	}
	return key, nil
}

// requestHash tells requests apart: by what they ask for, not by how their headers are spelled.
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

// recorder takes an answer that is to be kept before it is sent.
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
