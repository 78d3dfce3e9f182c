package api

import (
	"maps"
	"net/http"
)

// answerWhole runs answer with a writer that delays the status until the first byte of the body.
// huma sends the status first and encodes then, so a body that cannot be encoded would be a success
// without a body. jsonFormat therefore panics before it has written anything, and server.finish
// recovers, logs the panic and answers 500.
//
// For a HEAD request, answer ends where the body would begin, so that streams do not read long
// bodies.
//
// If the tenant has too many long answers that are not sent yet, the request is refused instead.
func (a *answers) answerWhole(w http.ResponseWriter, r *http.Request, answer func(http.ResponseWriter)) {
	held := &heldAnswer{ResponseWriter: w, answers: a, r: r, before: w.Header().Clone(), withoutBody: r.Method == http.MethodHead}
	defer func() {
		if !held.ended {
			if !held.sent {
				held.restore()
			}
			return
		}
		if fault := recover(); fault != nil && fault != http.ErrAbortHandler { // net/http compares it so, too
			panic(fault)
		}
	}()
	answer(held)
	held.send()
}

// heldAnswer is the writer of answerWhole.
type heldAnswer struct {
	http.ResponseWriter
	answers     *answers
	r           *http.Request
	before      http.Header
	status      int // 0: none yet
	sent        bool
	withoutBody bool // answer to HEAD
	ended       bool // nothing more may be written
}

// WriteHeader stores the status.
func (h *heldAnswer) WriteHeader(status int) {
	if h.status == 0 {
		h.status = status
	}
}

// Write sends the head first, if it was not sent yet.
func (h *heldAnswer) Write(b []byte) (int, error) {
	if !h.sent && !h.withoutBody {
		if err := h.answers.count(h.r, len(b), h.status); err != nil {
			h.sent, h.ended = true, true
			h.restore()
			requestFrom(h.r.Context()).capacity.refuse()
			writeProblem(h.ResponseWriter, h.r, tooManyUnread())
			return 0, err
		}
	}
	h.send()
	if h.withoutBody {
		h.ended = true
		return 0, http.ErrBodyNotAllowed
	}
	return h.ResponseWriter.Write(b)
}

// restore removes the headers of an answer that is not sent.
func (h *heldAnswer) restore() {
	clear(h.Header())
	maps.Copy(h.Header(), h.before)
}

func (h *heldAnswer) send() {
	if h.status != 0 && !h.sent {
		h.ResponseWriter.WriteHeader(h.status)
	}
	h.sent = true
}

// Unwrap lets http.ResponseController reach the connection.
func (h *heldAnswer) Unwrap() http.ResponseWriter { return h.ResponseWriter }
