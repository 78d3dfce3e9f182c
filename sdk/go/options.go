package weir

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// OnFailure is what answers if there is no decision of the server.
type OnFailure string

// The choices.
const (
	Allow OnFailure = "allow" // let the request pass
	Deny  OnFailure = "deny"  // refuse it
	Local OnFailure = "local" // count a share of the last known limits in this process
)

// The defaults of a client.
const (
	DefaultTimeout        = 100 * time.Millisecond
	DefaultConnectTimeout = 50 * time.Millisecond
	DefaultLocalShare     = 0.1
	DefaultOnFailure      = Allow

	maxIdleConnections = 64
	idleTimeout        = 30 * time.Second
)

type settings struct {
	timeout        time.Duration
	connectTimeout time.Duration
	onFailure      OnFailure
	localShare     float64
	breaker        bool
	denialMemory   bool
	batching       bool
	leases         bool
	transport      http.RoundTripper
	logger         *slog.Logger
	hooks          []Hooks
	clock          clock
}

func defaults() settings {
	return settings{
		timeout: DefaultTimeout, connectTimeout: DefaultConnectTimeout, onFailure: DefaultOnFailure, localShare: DefaultLocalShare,
		breaker: true, denialMemory: true, clock: systemClock{},
	}
}

// An Option changes a default of a client.
type Option func(*settings)

// WithTimeout sets the timeout of a call, including all its steps. A context that ends earlier
// still ends the call.
func WithTimeout(d time.Duration) Option { return func(s *settings) { s.timeout = d } }

// WithConnectTimeout sets the timeout for connecting.
func WithConnectTimeout(d time.Duration) Option { return func(s *settings) { s.connectTimeout = d } }

// WithOnFailure sets what answers if there is no decision of the server.
func WithOnFailure(f OnFailure) Option { return func(s *settings) { s.onFailure = f } }

// WithLocalShare sets the share of each limit, greater than 0 and up to 1, that this process allows
// with the fallback Local. With n processes, 1/n keeps the sum within the limit.
func WithLocalShare(share float64) Option { return func(s *settings) { s.localShare = share } }

// WithoutBreaker sends every call, even if many have failed.
func WithoutBreaker() Option { return func(s *settings) { s.breaker = false } }

// WithoutDenialMemory sends a check even if a denial is known to be still valid.
func WithoutDenialMemory() Option { return func(s *settings) { s.denialMemory = false } }

// WithBatching sends checks that start during another request together in the next one, up to 100
// in one request. A single caller never waits for others. Batched decisions have the X-RateLimit
// headers and Retry-After, but not the headers of the IETF draft.
func WithBatching() Option { return func(s *settings) { s.batching = true } }

// WithLeases decides frequent checks in memory, without a call. If all rules that match a check
// have the consistency leased, the client leases units for this process in the background, which
// the server charges, and grants them. A limit is never exceeded, with any number of processes.
// What the client does not use is returned. Close returns the rest.
//
// A decision from a lease has the Source [SourceLease]. Its Rules, Headers and Warning are those of
// the moment when the units were charged, all of them: at most a quarter of a second ago.
//
// A check with an idempotency key, CheckBatch, Peek and Explain always ask the server.
func WithLeases() Option { return func(s *settings) { s.leases = true } }

// WithTransport replaces the HTTP transport, including the connect timeout and the settings of
// connections. The transport must not retry.
func WithTransport(t http.RoundTripper) Option { return func(s *settings) { s.transport = t } }

// WithLogger sets the logger for the warning that the client logs when its breaker opens. The
// default is slog.Default.
func WithLogger(l *slog.Logger) Option { return func(s *settings) { s.logger = l } }

// WithHooks adds hooks for metrics, traces and logs.
func WithHooks(h Hooks) Option { return func(s *settings) { s.hooks = append(s.hooks, h) } }

func (s *settings) validate() *MisuseError {
	switch {
	case s.timeout <= 0:
		return invalid("timeout_ms", "is "+s.timeout.String(), "Pass a positive duration to WithTimeout.")
	case s.connectTimeout <= 0:
		return invalid("connect_timeout_ms", "is "+s.connectTimeout.String(), "Pass a positive duration to WithConnectTimeout.")
	case s.onFailure != Allow && s.onFailure != Deny && s.onFailure != Local:
		return invalid("on_failure", "is \""+string(s.onFailure)+"\"", "Pass Allow, Deny or Local to WithOnFailure.")
	case !(s.localShare > 0 && s.localShare <= 1):
		return invalid("local_share", "is out of range", "Pass a share greater than 0 and up to 1 to WithLocalShare.")
	}
	return nil
}

// parseURL parses the address of the server, without a trailing slash.
func parseURL(text string) (*url.URL, *MisuseError) {
	const fix = "Pass the address of the server, such as https://weir.example.com."
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return nil, invalid("url", "cannot be parsed", fix)
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, invalid("url", "has the scheme \""+u.Scheme+"\"", fix)
	case u.Host == "":
		return nil, invalid("url", "has no host", fix)
	case u.User != nil:
		return nil, invalid("url", "contains a user", fix+" The key is an argument of its own.")
	case u.RawQuery != "" || u.Fragment != "":
		return nil, invalid("url", "has a query string or a fragment", fix)
	}
	u.Path = strings.TrimSuffix(u.Path, "/")
	return u, nil
}

func withPath(base *url.URL, path string) *url.URL {
	u := *base
	u.Path, u.RawPath = base.Path+path, ""
	return &u
}

func validateKey(key string) *MisuseError {
	const fix = "Pass an API key with the scope check."
	if key == "" {
		return invalid("key", "is empty", fix)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return invalid("key", "contains a character that is not visible ASCII", fix)
		}
	}
	return nil
}

// newTransport returns a transport for many callers and one server: connections are kept open, and
// connecting takes no longer than the caller waits.
func newTransport(s *settings) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	dialer := &net.Dialer{Timeout: s.connectTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: max(s.connectTimeout, s.timeout),
		MaxIdleConns:        maxIdleConnections,
		MaxIdleConnsPerHost: maxIdleConnections,
		IdleConnTimeout:     idleTimeout,
		DisableCompression:  true,
		Protocols:           &protocols,
	}
}

// Hooks are called when a client does something. Each may be nil. They are called in the caller's
// goroutine, so they must be fast.
type Hooks struct {
	// Begin is called before a call and may return another context, for example one with a span.
	// The returned function, if any, is called with the result.
	Begin func(ctx context.Context, call Call) (context.Context, func(Result))

	// Inject can add headers to a request, such as traceparent. The context is the one that Begin
	// returned. It is not called for automatic batches, which contain checks of several callers.
	Inject func(ctx context.Context, header http.Header)

	// BreakerChanged is called when the circuit breaker changes its state.
	BreakerChanged func(from, to BreakerState)
}

// A Call is a call of Check, Peek, Explain or CheckBatch. Wait makes several calls.
type Call struct {
	Name   string  // "check", "peek", "explain" or "batch"
	Checks []Check // the checks of the call; do not change them
}

// A Result is the result of a call.
type Result struct {
	Decisions []Decision // one for each check, unless Err is set
	Err       error      // misuse, or the context's error
	Duration  time.Duration
}

type traceparentKey struct{}

// ContextWithTraceparent returns a context whose checks are sent with a W3C traceparent. The
// middleware does this with the header of the incoming request. A text of another form is ignored.
func ContextWithTraceparent(ctx context.Context, traceparent string) context.Context {
	if !validTraceparent(traceparent) {
		return ctx
	}
	return context.WithValue(ctx, traceparentKey{}, traceparent)
}

// validTraceparent reports whether a text is a traceparent: version, trace, parent and flags, in
// hexadecimal. Customers write this header, and must not get their check refused with it.
func validTraceparent(text string) bool {
	if len(text) != len("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01") || text[:2] == "ff" {
		return false
	}
	for i := range len(text) {
		c := text[i]
		if dash := i == 2 || i == 35 || i == 52; dash != (c == '-') || !dash && !(c >= '0' && c <= '9' || c >= 'a' && c <= 'f') {
			return false
		}
	}
	return true
}
