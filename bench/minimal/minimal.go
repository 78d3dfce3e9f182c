// Package minimal is the smallest HTTP server that answers checks: net/http, a decoded JSON
// request, a JSON response of the same size as Weir's, and four headers. It does not authenticate,
// validate or record anything. Alone, it shows the cost of an HTTP request. With the library of a
// peer behind it, it shows what that library adds.
package minimal

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// Verdict is a peer's decision about one check.
type Verdict struct {
	Allowed    bool
	Limit      int64
	Remaining  int64
	ResetAfter time.Duration
	RetryAfter time.Duration // of a denial
}

// Decide counts one check of a subject.
type Decide func(ctx context.Context, subject string) (Verdict, error)

// Addresses are the addresses of the listeners. "" turns a listener off.
type Addresses struct{ http, https, cert, key string }

// Flags adds -http, -https, -cert and -key to the command line.
func (a *Addresses) Flags() {
	flag.StringVar(&a.http, "http", "", "`address` to serve HTTP/1.1 on")
	flag.StringVar(&a.https, "https", "", "`address` to serve HTTP/1.1 and HTTP/2 over TLS on")
	flag.StringVar(&a.cert, "cert", "", "certificate `file`")
	flag.StringVar(&a.key, "key", "", "key `file` of the certificate")
}

// Serve answers checks until SIGINT or SIGTERM.
func (a *Addresses) Serve(decide Decide) error {
	server := &http.Server{Handler: handler(decide), ReadHeaderTimeout: 10 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ended := make(chan error, 2)
	if a.http != "" {
		listener, err := net.Listen("tcp", a.http)
		if err != nil {
			return err
		}
		go func() { ended <- server.Serve(listener) }()
	}
	if a.https != "" {
		listener, err := net.Listen("tcp", a.https)
		if err != nil {
			return err
		}
		go func() { ended <- server.ServeTLS(listener, a.cert, a.key) }()
	}
	select {
	case err := <-ended:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
		return server.Close()
	}
}

// handler routes without a mux, whose cost would not belong to a peer.
func handler(decide Decide) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/check":
			serveCheck(w, r, decide)
		case "/empty": // only the status 200: the cost of net/http itself
		case "/metrics":
			serveAllocations(w)
		default:
			http.NotFound(w, r)
		}
	}
}

type request struct {
	Subject  string `json:"subject"`
	Resource string `json:"resource"`
	Cost     int64  `json:"cost"`
}

func serveCheck(w http.ResponseWriter, r *http.Request, decide Decide) {
	body, err := io.ReadAll(r.Body)
	var check request
	if err == nil {
		err = json.Unmarshal(body, &check)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	v, err := decide(r.Context(), check.Subject)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h["Content-Type"] = []string{"application/json"}
	h["X-Ratelimit-Limit"] = []string{strconv.FormatInt(v.Limit, 10)}
	h["X-Ratelimit-Remaining"] = []string{strconv.FormatInt(v.Remaining, 10)}
	h["X-Ratelimit-Reset"] = []string{strconv.FormatInt(int64(v.ResetAfter/time.Second), 10)}
	if !v.Allowed {
		h["Retry-After"] = []string{strconv.FormatInt(int64((v.RetryAfter+time.Second-1)/time.Second), 10)}
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(appendAnswer(make([]byte, 0, answerSize), &check, v)) // the client may be gone
}

const answerSize = 640 // longer than any response with the names that bench uses

// appendAnswer appends what Weir answers if one rule matches.
func appendAnswer(b []byte, r *request, v Verdict) []byte {
	b = append(b, `{"allowed":`...)
	b = strconv.AppendBool(b, v.Allowed)
	b = append(b, `,"subject":"`...)
	b = append(b, r.Subject...)
	b = append(b, `","resource":"`...)
	b = append(b, r.Resource...)
	b = append(b, `","cost":`...)
	b = strconv.AppendInt(b, r.Cost, 10)
	b = append(b, `,"plan":null,"rule":"requests"`...)
	b = appendNumbers(b, v)
	b = append(b, `,"rules":[{"rule":"requests","algorithm":"sliding_window_counter","mode":"enforce","allowed":`...)
	b = strconv.AppendBool(b, v.Allowed)
	b = append(b, `,"source":"rule","window_ms":60000`...)
	b = appendNumbers(b, v)
	b = append(b, `}],"degraded":false`...)
	if !v.Allowed {
		b = append(b, `,"error":{"code":"RATE_LIMIT_EXCEEDED","message":"Rate limit exceeded. Try again in 60 seconds.","retry_after":60}`...)
	}
	return append(b, '}')
}

func appendNumbers(b []byte, v Verdict) []byte {
	b = append(b, `,"limit":`...)
	b = strconv.AppendInt(b, v.Limit, 10)
	b = append(b, `,"remaining":`...)
	b = strconv.AppendInt(b, v.Remaining, 10)
	b = append(b, `,"retry_after_ms":`...)
	b = strconv.AppendInt(b, v.RetryAfter.Milliseconds(), 10)
	b = append(b, `,"reset_after_ms":`...)
	return strconv.AppendInt(b, v.ResetAfter.Milliseconds(), 10)
}

// serveAllocations serves the same variable as Weir's internal address.
func serveAllocations(w http.ResponseWriter) {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	fmt.Fprintf(w, "go_memstats_mallocs_total %d\n", stats.Mallocs)
}
