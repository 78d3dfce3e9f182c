package api

import (
	"maps"
	"net/http"
)

// answerWhole has answer write to a writer that holds the status back until the first byte of the
// body is there. huma gives the status first and encodes then: of a body that cannot be encoded
// nothing but a success without a body would reach the client. So jsonFormat panics before it has
// written anything, and who recovers from that (server.finish) logs it and answers 500.
//
// A HEAD ends where the body would begin: what streams long bodies is not to read them for nobody.
func answerWhole(w http.ResponseWriter, r *http.Request, answer func(http.ResponseWriter)) {
	held := &heldAnswer{ResponseWriter: w, withoutBody: r.Method == http.MethodHead}
	before := w.Header().Clone()
	defer func() {
		if !held.ended {
			if !held.sent { // it failed, and its headers are none of those of the failure
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
	status      int // 0: none was given
	sent        bool
	withoutBody bool // of an answer to HEAD
	ended       bool // and it has had all that it may
}

// WriteHeader notes the status.
func (h *heldAnswer) WriteHeader(status int) {
	if h.status == 0 {
		h.status = status
	}
}

// Write sends the head if that is still to be done.
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
