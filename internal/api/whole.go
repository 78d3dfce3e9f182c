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
func answerWhole(w http.ResponseWriter, r *http.Request, answer func(http.ResponseWriter)) {
	held := &heldAnswer{ResponseWriter: w, withoutBody: r.Method == http.MethodHead}
	before := w.Header().Clone()
	defer func() {
		if !held.ended {
			if !held.sent { // it failed, and its headers are not those of the failure
				clear(w.Header())
				maps.Copy(w.Header(), before)
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
	h.send()
	if h.withoutBody {
		h.ended = true
		return 0, http.ErrBodyNotAllowed
	}
	return h.ResponseWriter.Write(b)
}

func (h *heldAnswer) send() {
	if h.status != 0 && !h.sent {
		h.ResponseWriter.WriteHeader(h.status)
	}
	h.sent = true
}

// Unwrap lets http.ResponseController reach the connection.
func (h *heldAnswer) Unwrap() http.ResponseWriter { return h.ResponseWriter }
