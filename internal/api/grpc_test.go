package api

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"weir/internal/testenv"
)

// A thousand calls at once, on several connections of the gRPC library, are all decided, and the
// limit is exact.
func TestManyCallsAtOnce(t *testing.T) {
	s := newEnvoyStack(t)
	_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly("crowd", "crowd", 700, "subject"))
	require.NoError(t, err)
	ask := asking(described("subject", "u", "resource", "crowd"))
	s.answered(asking(described("subject", "another", "resource", "crowd"))) // the key is known from here
	var calls sync.WaitGroup
	var allowed, denied atomic.Int64
	begin := make(chan struct{})
	for range 5 {
		conn, err := grpc.NewClient(s.conn.Target(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		client := rls.NewRateLimitServiceClient(conn)
		for range 200 {
			calls.Go(func() {
				<-begin
				ctx := metadata.AppendToOutgoingContext(t.Context(), keyMetadata, s.key)
				response, err := client.ShouldRateLimit(ctx, ask)
				switch {
				case err != nil:
					t.Error(err)
				case response.OverallCode == rls.RateLimitResponse_OK:
					allowed.Add(1)
				default:
					denied.Add(1)
				}
			})
		}
	}
	close(begin)
	calls.Wait()
	require.EqualValues(t, 700, allowed.Load())
	require.EqualValues(t, 300, denied.Load())
}

// rawCall sends a request to the gRPC listener with any headers and body.
func (s *envoyStack) rawCall(method, path string, body io.Reader, headers ...string) *http.Response {
	s.t.Helper()
	transport := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	s.t.Cleanup(transport.CloseIdleConnections)
	r, err := http.NewRequestWithContext(s.t.Context(), method, "http://"+s.conn.Target()+path, body)
	require.NoError(s.t, err)
	r.Header.Set("Content-Type", "application/grpc")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := transport.RoundTrip(r)
	require.NoError(s.t, err)
	_, _ = io.Copy(io.Discard, response.Body)
	require.NoError(s.t, response.Body.Close())
	for name, values := range response.Trailer {
		response.Header[name] = values
	}
	return response
}

// framed returns a message with its prefix.
func framed(flag byte, message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{flag}, uint32(len(message)))) + message
}

// Calls that gRPC does not permit get the status that the gRPC library gives them.
func TestInvalidGRPCCalls(t *testing.T) {
	s := newEnvoyStack(t)
	b, err := proto.Marshal(asking(described("subject", "u")))
	require.NoError(t, err)
	fine := framed(0, string(b))
	for name, c := range map[string]struct {
		method, path, body string
		headers            []string
		http               int
		code               codes.Code
		message            string
	}{
		"fine":                  {"POST", envoyPath, fine, nil, 200, codes.OK, ""},
		"with a format":         {"POST", envoyPath, fine, []string{"Content-Type", "application/grpc+proto"}, 200, codes.OK, ""},
		"with a timeout":        {"POST", envoyPath, fine, []string{"Grpc-Timeout", "1M"}, 200, codes.OK, ""},
		"with a long timeout":   {"POST", envoyPath, fine, []string{"Grpc-Timeout", "99999999H"}, 200, codes.OK, ""},
		"identity":              {"POST", envoyPath, fine, []string{"Grpc-Encoding", "identity"}, 200, codes.OK, ""},
		"gzip":                  {"POST", envoyPath, fine, []string{"Grpc-Encoding", "gzip"}, 200, codes.Unimplemented, "Decompressor is not installed"},
		"compressed":            {"POST", envoyPath, framed(1, string(b)), nil, 200, codes.Internal, "compressed flag set"},
		"unknown flag":          {"POST", envoyPath, framed(2, string(b)), nil, 200, codes.Internal, "unexpected payload format 2"},
		"too long":              {"POST", envoyPath, "\x00\x00\x10\x00\x01", nil, 200, codes.ResourceExhausted, "larger than max (1048577 vs. 1048576)"},
		"nothing":               {"POST", envoyPath, "", nil, 200, codes.InvalidArgument, "MALFORMED_MESSAGE"},
		"half a prefix":         {"POST", envoyPath, fine[:3], nil, 200, codes.InvalidArgument, "MALFORMED_MESSAGE"},
		"half a message":        {"POST", envoyPath, fine[:len(fine)-1], nil, 200, codes.InvalidArgument, "MALFORMED_MESSAGE"},
		"more than one message": {"POST", envoyPath, fine + fine, nil, 200, codes.OK, ""},
		"another method":        {"POST", "/" + envoyService + "/Other", fine, nil, 200, codes.Unimplemented, "unknown method Other"},
		"another service":       {"POST", "/a.B/C", fine, nil, 200, codes.Unimplemented, "unknown service a.B"},
		"GET":                   {"GET", envoyPath, "", nil, 405, 0, ""},
		"JSON":                  {"POST", envoyPath, fine, []string{"Content-Type", "application/json"}, 415, 0, ""},
		"almost gRPC":           {"POST", envoyPath, fine, []string{"Content-Type", "application/grpcx"}, 415, 0, ""},
		"a wrong timeout":       {"POST", envoyPath, fine, []string{"Grpc-Timeout", "1x"}, 400, 0, ""},
		"no number":             {"POST", envoyPath, fine, []string{"Grpc-Timeout", "S"}, 400, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.rawCall(c.method, c.path, strings.NewReader(c.body), append([]string{"Weir-Key", s.key}, c.headers...)...)
			require.Equal(t, c.http, r.StatusCode)
			if c.http == 200 {
				require.Equal(t, itoa(int64(c.code)), r.Header.Get("Grpc-Status"), r.Header)
				require.Contains(t, r.Header.Get("Grpc-Message"), c.message)
			}
		})
	}
}

// The page about Envoy lists every status of a call, and every error of HTTP/2.
func TestEnvoyPageListsEveryStatus(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "gateways", "envoy.md"))
	require.NoError(t, err)
	camel := regexp.MustCompile("([a-z])([A-Z])")
	listed := func(name string) {
		t.Helper()
		require.Regexp(t, "(?m)^\\| [^|]*`"+strings.ToUpper(camel.ReplaceAllString(name, "${1}_$2"))+"(_ERROR)?`", string(page))
	}
	for httpStatus, code := range callCodes {
		if httpStatus != http.StatusNotFound { // a call looks nothing up
			listed(code.String())
		}
	}
	for _, code := range []codes.Code{codes.Unimplemented, codes.Internal} {
		listed(code.String())
	}
	sources, err := filepath.Glob(filepath.Join(testenv.Root(), "internal", "h2", "*.go"))
	require.NoError(t, err)
	used := regexp.MustCompile("http2\\.ErrCode([A-Z][A-Za-z]*)")
	found := 0
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		text, err := os.ReadFile(source)
		require.NoError(t, err)
		for _, code := range used.FindAllStringSubmatch(string(text), -1) {
			listed(code[1])
			found++
		}
	}
	require.Greater(t, found, 40)
}

// A message must arrive in time, and only a client with a valid key may take that time.
func TestSlowMessages(t *testing.T) {
	s := newEnvoyStack(t)
	limits := callLimits
	limits.Body = 2 * time.Second // longer than a busy machine needs for the call at the end
	slow := &envoyStack{checkStack: s.checkStack, grpc: newGRPC(nil, limits)}
	slow.conn = slow.serveCalls(slow.grpc)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	New(Config{Headers: bothStyles, GRPC: slow.grpc}, deps)
	for key, want := range map[string]codes.Code{s.key: codes.DeadlineExceeded, "weir_x": codes.Unauthenticated} {
		body, end := io.Pipe()
		go func() { _, _ = end.Write([]byte{0, 0, 0}) }()
		r := slow.rawCall("POST", envoyPath, body, "Weir-Key", key)
		require.Equal(t, itoa(int64(want)), r.Header.Get("Grpc-Status"), "%v", r.Header)
		require.Equal(t, decisionNone, r.Header.Get("Weir-Decision"))
		require.NoError(t, end.Close())
	}
	_, err := slow.call(asking(described("subject", "u")))
	require.NoError(t, err)
}

// A caller's timeout ends with an error, and does not stop the next call.
func TestCallersTimeout(t *testing.T) {
	s := newEnvoyStack(t)
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), keyMetadata, s.key), time.Minute)
	defer cancel()
	_, err := rls.NewRateLimitServiceClient(s.conn).ShouldRateLimit(ctx, asking(described("subject", "u")))
	require.NoError(t, err)
	ctx, cancel = context.WithTimeout(ctx, 0)
	defer cancel()
	_, err = rls.NewRateLimitServiceClient(s.conn).ShouldRateLimit(ctx, asking(described("subject", "u")))
	require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	s.answered(asking(described("subject", "u")))
}

// A message of a call is escaped as gRPC says.
func TestEscapedMessages(t *testing.T) {
	for text, want := range map[string]string{
		"plain text": "plain text", "100 %": "100 %25", "a\nb": "a%0Ab", "ä": "%C3%A4", "\xff": "%EF%BF%BD",
	} {
		require.Equal(t, want, escapeMessage(text))
	}
}
