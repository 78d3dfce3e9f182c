package weir

import (
	"io"
	"net/http"
)

// guardedHeaders are the rate-limit headers of a decision in an answer whose handler may set those
// of another limiter.
type guardedHeaders struct {
	header http.Header
	d      *Decision
	set    [len(headerNames)][]string // as the guard has set them
}

func newGuardedHeaders(header http.Header, d *Decision) guardedHeaders {
	d.CopyHeaders(header)
	h := guardedHeaders{header: header, d: d}
	for i, name := range headerNames {
		h.set[i] = header[name]
	}
	return h
}

// settle keeps the stricter of the two sets, if the handler has set one. It knows the handler's
// values by their slices, since a value may be equal in both sets.
func (h *guardedHeaders) settle() {
	theirs := map[string][]string{}
	for i, name := range headerNames {
		now, before := h.header[name], h.set[i]
		switch {
		case len(now) == 0 || len(before) == len(now) && &before[0] == &now[0]:
		case len(now) > 1 && len(before) == 1 && now[0] == before[0]: // added, not replaced
			theirs[name] = now[1:]
		default:
			theirs[name] = now
		}
	}
	if len(theirs) == 0 {
		return
	}
	for _, name := range headerNames {
		delete(h.header, name)
		if values := theirs[name]; values != nil {
			h.header[name] = values
		}
	}
	h.d.CopyHeaders(h.header)
}

// A guardedWriter settles the headers before they are sent.
type guardedWriter struct {
	http.ResponseWriter
	headers guardedHeaders
	sent    bool
}

// newGuardedWriter returns a writer with those features of w that handlers ask for by a type
// assertion. Those of http.ResponseController are there in any case.
func newGuardedWriter(w http.ResponseWriter, d *Decision) (http.ResponseWriter, *guardedWriter) {
	guarded := &guardedWriter{ResponseWriter: w, headers: newGuardedHeaders(w.Header(), d)}
	_, flushes := w.(http.Flusher)
	_, reads := w.(io.ReaderFrom)
	hijacker, hijacks := w.(http.Hijacker)
	switch {
	case flushes && hijacks && reads: // HTTP/1
		return struct {
			*guardedWriter
			guardedFlusher
			guardedReader
			http.Hijacker
		}{guarded, guardedFlusher{guarded}, guardedReader{guarded}, hijacker}, guarded
	case flushes && hijacks: // HTTP/1 behind other middleware
		return struct {
			*guardedWriter
			guardedFlusher
			http.Hijacker
		}{guarded, guardedFlusher{guarded}, hijacker}, guarded
	case flushes: // HTTP/2
		return struct {
			*guardedWriter
			guardedFlusher
		}{guarded, guardedFlusher{guarded}}, guarded
	}
	return guarded, guarded
}

func (w *guardedWriter) settle() {
	if !w.sent {
		w.sent = true
		w.headers.settle()
	}
}

func (w *guardedWriter) WriteHeader(status int) {
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols { // not 103 Early Hints
		w.settle()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *guardedWriter) Write(p []byte) (int, error) {
	w.settle()
	return w.ResponseWriter.Write(p)
}

// FlushError and Unwrap serve http.ResponseController.
func (w *guardedWriter) FlushError() error {
	w.settle()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *guardedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type guardedFlusher struct{ writer *guardedWriter }

func (f guardedFlusher) Flush() { _ = f.writer.FlushError() } // Flush of net/http tells no error either

type guardedReader struct{ writer *guardedWriter }

func (r guardedReader) ReadFrom(source io.Reader) (int64, error) {
	r.writer.settle()
	return io.Copy(r.writer.ResponseWriter, source)
}
