package api

import (
	"log/slog"
	"net/http"
	"time"
)

// Limits of a connection. A check is answered in milliseconds, so they affect only broken and
// hostile clients.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // the whole request, including the body
	writeTimeout      = 10 * time.Second
	// idleTimeout is longer than the 60 s of common load balancers. The balancer then closes idle
	// connections, because it knows which requests it is about to send.
	idleTimeout    = 75 * time.Second
	maxHeaderBytes = 16 << 10
	maxStreams     = 100 // concurrent HTTP/2 requests on one connection
	// maxHandlers is the number of HTTP/2 requests in progress that are no checks, live pages
	// included. Answers that wait for their clients count for maxUnreadAnswers instead.
	maxHandlers   = 4096
	leastHandlers = 16 // what a network has even if others use all
	// maxUnreadAnswers is the number of answers over HTTP/2 that wait for their clients. Without a
	// key, such an answer is a document or a page that many share, and keeps up to 30 KB: the stack
	// and the head of the request. Besides, each keeps up to 64 KiB of a body that was not read. Of
	// 2048, this is 190 MB. With a key, it also keeps up to 64 KiB of the answer. What is longer
	// counts by its bytes for the tenant (unread_answers.go).
	maxUnreadAnswers = 2048
	// maxUnreadRests is the number of bytes of answers over HTTP/2, or over gRPC, that wait for
	// their clients without a goroutine. Short answers wait like this, also of checks.
	maxUnreadRests = 64 << 20
)

// NewServer returns a server for h with the limits of a public listener. HTTP/2 is available only
// over TLS. Errors of net/http itself (failed handshakes, broken clients) are logged at level
// debug, because any client can cause them at any rate.
func NewServer(h http.Handler, logger *slog.Logger) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		Protocols:         protocols,
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}
