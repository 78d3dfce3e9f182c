package api

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/check/checktest"
	"weir/internal/engine"
	"weir/internal/limit"
	"weir/internal/places"
	"weir/internal/recent"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// adminStack is the API with a real database, two tenants and the operator.
type adminStack struct {
	t     *testing.T
	db    *tenantstest.Database
	store *tenants.Store
	url   string
	doc   *openapi3.T
	log   *lockedBuffer // what was logged
	// counters are those of serve's servers; nil: each has its own.
	counters *engine.Memory

	processors *places.Processors
	buffer     int                                              // bytes that serve's servers may have under way to a client; 0: as many as the system likes
	instances  int                                              // of the service, as serve's servers are to think; 0: one
	listen     func(net.Listener) net.Listener                  // wraps the listener of serve's servers; nil: it does not
	follow     func(ctx context.Context, tenant limit.TenantID) // after a change of a tenant; nil: nothing
	invited    func(tenants.Invitation)
	unsentLink func(tenants.Invitation) string // the link of an invitation; nil if it is sent by mail

	recent        *recent.Log // of the last server, as the next three
	metrics       *Metrics
	checker       *check.Checker
	authenticator *tenants.Authenticator
	stop          func() // ends its streams

	a, b                    tenants.Actor // as system, to prepare and look behind the API
	key, other, operator    string        // all scopes: tenant A's, tenant B's, the operator's
	readKey, checkKey, wKey string        // tenant A's with one scope each
}

// lockedBuffer can be read while requests write to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// newAdminStack also runs the test in parallel with others, because it has its own database.
func newAdminStack(t *testing.T) *adminStack {
	t.Helper()
	return newAdminStackWith(t, tenants.Config{})
}

// newAdminStackWith is newAdminStack with a store of a config.
func newAdminStackWith(t *testing.T, config tenants.Config) *adminStack {
	t.Helper()
	t.Parallel()
	db := tenantstest.NewWith(t, config)
	s := &adminStack{t: t, db: db, store: db.Store, log: &lockedBuffer{}, processors: places.NewProcessors(runtime.GOMAXPROCS(0))}
	s.url = s.serve(db.Store)
	s.doc = loadDocument(t)
	var keyA, keyB tenants.Key
	s.a, keyA = db.Tenant("tenant-a")
	s.b, keyB = db.Tenant("tenant-b")
	s.key, s.other = keyA.Secret(), keyB.Secret()
	_, secret, err := s.store.CreateOperatorKey(t.Context(), "operator")
	require.NoError(t, err)
	s.operator = secret.Secret()
	for scope, key := range map[tenants.Scope]*string{
		tenants.ScopeRead: &s.readKey, tenants.ScopeCheck: &s.checkKey, tenants.ScopeWrite: &s.wKey,
	} {
		*key = s.newKey(tenants.NewAPIKey{Name: string(scope), Scopes: []tenants.Scope{scope}})
	}
	return s
}

// newKey creates a key of tenant A and returns its secret.
func (s *adminStack) newKey(k tenants.NewAPIKey) string {
	s.t.Helper()
	_, secret, err := s.store.CreateKey(s.t.Context(), s.a, k)
	require.NoError(s.t, err)
	return secret.Secret()
}

// serve starts a server whose handlers use store, and returns its URL. Keys are looked up in the
// stack's own store.
func (s *adminStack) serve(store *tenants.Store) string {
	s.t.Helper()
	secrets, err := s.store.Secrets(s.t.Context())
	require.NoError(s.t, err)
	logger := slog.New(slog.NewJSONHandler(s.log, nil))
	keys := check.NewKeys([16]byte{})
	options := checktest.Options{Keys: keys, Instances: max(s.instances, 1)}
	if s.counters != nil {
		options.Shared = s.counters
	}
	parts := checktest.New(s.t, options)
	stopping := make(chan struct{})
	s.stop = sync.OnceFunc(func() { close(stopping) })
	s.t.Cleanup(s.stop)
	s.authenticator = tenants.NewAuthenticator(s.store)
	s.recent = recent.New(recent.Options{Keys: keys, Peers: parts.Peers})
	s.metrics = NewMetrics(prometheus.NewRegistry())
	s.checker = parts.Checker
	server := httptest.NewUnstartedServer(New(Config{}, Deps{
		Store: store, Authenticator: s.authenticator, Stopping: stopping, Recent: s.recent,
		Policies: check.NewPolicies(store, keys, logger, parts.Metrics), Checker: parts.Checker, Instances: parts.Peers.Count,
		Logger: logger, Follow: s.follow,
		Processors: s.processors,
		Metrics:    s.metrics, CursorKey: secrets.CursorKey[:],
		Readiness: func() Readiness { return Readiness{} }, Invited: s.invited, InvitationLink: s.unsentLink,
	}))
	if s.buffer > 0 {
		server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			_ = c.(*net.TCPConn).SetWriteBuffer(s.buffer) // it listens on TCP
			return ctx
		}
	}
	if s.listen != nil {
		server.Listener = s.listen(server.Listener)
	}
	server.Start()
	s.t.Cleanup(server.Close)
	return server.URL
}

// in returns the stack for a subtest.
func (s *adminStack) in(t *testing.T) *adminStack {
	sub := *s
	sub.t = t
	return &sub
}

// withoutDatabase starts a server that knows the same keys, and whose store cannot reach Postgres.
func (s *adminStack) withoutDatabase() *adminStack {
	s.t.Helper()
	away := s.db.Open(tenants.Config{})
	away.Close()
	broken := s.in(s.t)
	broken.url = s.serve(away)
	return broken
}

// loadDocument returns the served OpenAPI document. It is the same on every server and slow to
// parse, so all tests share it.
func loadDocument(t *testing.T) *openapi3.T {
	t.Helper()
	doc, err := document()
	require.NoError(t, err)
	return doc
}

var document = sync.OnceValues(func() (*openapi3.T, error) {
	return openapi3.NewLoader().LoadFromData(documentText())
})

// documentText returns the document as bytes.
var documentText = sync.OnceValue(func() []byte {
	h := New(Config{}, Deps{Logger: slog.New(slog.DiscardHandler), Metrics: NewMetrics(prometheus.NewRegistry())})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/openapi.json", nil))
	return w.Body.Bytes()
})

// answer is a response with its body.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   []byte
}

// json returns the decoded body.
func (a answer) json() map[string]any {
	a.t.Helper()
	var v map[string]any
	require.NoError(a.t, json.Unmarshal(a.body, &v), "%s", a.body)
	return v
}

// problem asserts that the answer is a problem document with this status and code.
func (a answer) problem(status int, code string) Problem {
	a.t.Helper()
	require.Equal(a.t, status, a.status, "%s", a.body)
	require.Equal(a.t, "application/problem+json", a.header.Get("Content-Type"))
	var p Problem
	require.NoError(a.t, json.Unmarshal(a.body, &p))
	require.Equal(a.t, code, p.Code, "%s", a.body)
	require.Equal(a.t, status, p.Status)
	require.NotEmpty(a.t, p.RequestID)
	require.NotEmpty(a.t, p.Instance)
	require.Equal(a.t, a.header.Get("X-Request-Id"), p.RequestID)
	for _, field := range p.Errors {
		require.NotEmpty(a.t, field.Fix, "%s %s", field.Pointer, field.Message)
	}
	return p
}

// pointers returns the pointers of a 422, in order.
func (a answer) pointers(status int, code string) []string {
	a.t.Helper()
	var out []string
	for _, f := range a.problem(status, code).Errors {
		out = append(out, f.Pointer)
	}
	slices.Sort(out)
	return out
}

// ok asserts the status of a success.
func (a answer) ok(status int) answer {
	a.t.Helper()
	require.Equal(a.t, status, a.status, "%s", a.body)
	return a
}

// header is one header of a request.
type header struct{ name, value string }

// call sends a request and compares the answer with the OpenAPI document. A string body is sent
// unchanged; nil is no body.
func (s *adminStack) call(key, method, path string, body any, headers ...header) answer {
	s.t.Helper()
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		reader = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		require.NoError(s.t, err)
		reader = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, reader)
	require.NoError(s.t, err)
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		if strings.EqualFold(h.name, "Content-Type") {
			r.Header.Del("Content-Type")
		}
		r.Header.Add(h.name, h.value)
	}
	return s.send(r)
}

func (s *adminStack) send(r *http.Request) answer {
	s.t.Helper()
	response, err := http.DefaultTransport.RoundTrip(r)
	require.NoError(s.t, err)
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	require.NoError(s.t, err)
	a := answer{t: s.t, status: response.StatusCode, header: response.Header, body: data}
	s.checkContract(r, a)
	return a
}

// checkContract fails the test if an answer does not match the document: an unknown status, a
// missing or unknown field, another type.
func (s *adminStack) checkContract(r *http.Request, a answer) {
	s.t.Helper()
	if isHot(r.URL.Path) {
		a.checkDecisionHeader()
	}
	path, params := s.pathOf(r.URL.EscapedPath())
	if path == "" {
		return // not a documented path: only 404 and 405 can be the answer
	}
	op := s.doc.Paths.Value(path).GetOperation(r.Method)
	if op == nil {
		return
	}
	isJSON := len(a.body) > 0 && strings.HasSuffix(a.header.Get("Content-Type"), "json")
	input := &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{
			Request: r, PathParams: params,
			Route: &routers.Route{Spec: s.doc, Path: path, PathItem: s.doc.Paths.Value(path), Method: r.Method, Operation: op},
		},
		Status: a.status, Header: a.header,
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, ExcludeResponseBody: len(a.body) == 0 || isJSON},
	}
	input.SetBodyBytes(a.body)
	require.NoError(s.t, openapi3filter.ValidateResponse(context.Background(), input), "%s %s\n%s", r.Method, path, a.body)
	if isJSON {
		a.checkBody(path, r.Method, op)
	}
	a.checkHeaders(op)
	validated.add(op.OperationID, a.status)
}

// pathOf returns the path of the document for an escaped path of a request.
func (s *adminStack) pathOf(escaped string) (string, map[string]string) {
	parts := strings.Split(escaped, "/")
	var best string
	var bestParams map[string]string
	for path := range s.doc.Paths.Map() {
		pattern := strings.Split(path, "/")
		if len(pattern) != len(parts) {
			continue
		}
		params := map[string]string{}
		match := true
		for i, p := range pattern {
			if strings.HasPrefix(p, "{") {
				params[strings.Trim(p, "{}")] = parts[i]
			} else if p != parts[i] {
				match = false
			}
		}
		if match && (best == "" || len(params) < len(bestParams)) {
			best, bestParams = path, params
		}
	}
	return best, bestParams
}

// operations returns the documented operations of the admin API by id.
func (s *adminStack) operations() map[string]documented {
	out := map[string]documented{}
	for path, item := range s.doc.Paths.Map() {
		for method, op := range item.Operations() {
			if !slices.Contains(op.Tags, "check") && !slices.Contains(op.Tags, "health") && !slices.Contains(op.Tags, "webhooks") && !slices.Contains(op.Tags, "device-logins") {
				out[op.OperationID] = documented{method: method, path: path, op: op}
			}
		}
	}
	return out
}

type documented struct {
	method, path string
	op           *openapi3.Operation
}
