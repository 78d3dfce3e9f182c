package api

import (
	"net"
	"net/http"
	"net/netip"
	"runtime"

	"weir/internal/origin"
	"weir/internal/places"
)

// runsPerProcessor is how many requests of a client that are no checks on the lane run at the same
// time, for each processor.
const runsPerProcessor = 8

// starts are the places of all listeners of the process for requests that run.
var starts = newStarts(runtime.GOMAXPROCS(0))

func newStarts(processors int) *places.Starts[netip.Prefix] {
	return places.NewStarts[netip.Prefix](runsPerProcessor * processors)
}

// maxContentType is the length of a Content-Type from which on a request has none. Its parameters
// are parsed several times, for milliseconds if they are very many.
const maxContentType = 256

// Starting returns a handler for the public listeners, behind origin.Proxies.Handler: few requests
// of a client run at the same time. Those over HTTP/2 have a place already.
func Starting(next http.Handler) http.Handler { return starting(starts, next) }

func starting(starts *places.Starts[netip.Prefix], next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if given := r.Header["Content-Type"]; len(given) > 0 && len(given[0]) > maxContentType {
			delete(r.Header, "Content-Type")
		}
		if r.ProtoMajor == 1 {
			host, _, _ := net.SplitHostPort(r.RemoteAddr) // without an address, all are one client
			ctx, end := starts.Begin(r.Context(), origin.WithinHost(host).Client())
			defer end()
			if ctx != r.Context() {
				r = r.WithContext(ctx)
			}
		}
		next.ServeHTTP(w, r)
	})
}
