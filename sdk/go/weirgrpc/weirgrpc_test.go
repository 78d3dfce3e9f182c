package weirgrpc

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/weirtest"
)

const (
	checkMethod = "/grpc.health.v1.Health/Check"
	watchMethod = "/grpc.health.v1.Health/Watch"
)

// connect starts a server with the health service and returns a client of it. Of the guard and the
// limit, each may be nil.
func connect(t *testing.T, guard *Guard, limit *Limit) healthpb.HealthClient {
	t.Helper()
	var serverOptions []grpc.ServerOption
	if guard != nil {
		serverOptions = append(serverOptions, grpc.UnaryInterceptor(guard.Unary), grpc.StreamInterceptor(guard.Stream))
	}
	server := grpc.NewServer(serverOptions...)
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) })}
	if limit != nil {
		options = append(options, grpc.WithUnaryInterceptor(limit.Unary), grpc.WithStreamInterceptor(limit.Stream))
	}
	connection, err := grpc.NewClient("passthrough:///shop", options...)
	must(t, err)
	t.Cleanup(func() {
		must(t, connection.Close())
		server.Stop()
		must(t, <-served)
	})
	return healthpb.NewHealthClient(connection)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask makes a unary call with the metadata x-customer, unless it is empty.
func ask(client healthpb.HealthClient, customer string) (header metadata.MD, err error) {
	ctx := context.Background()
	if customer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "x-customer", customer)
	}
	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	return header, err
}

func TestGuardLetsCallsThroughWithHeaders(t *testing.T) {
	fake := weirtest.Script(weirtest.Allowed(), weirtest.Delayed(time.Millisecond), weirtest.NoDecision(weir.CauseTimeout))
	client := connect(t, &Guard{Checker: fake, Subject: Metadata("x-customer")}, nil)
	header, err := ask(client, "user_42")
	must(t, err)
	if !slices.Equal(header.Get("x-ratelimit-remaining"), []string{"99"}) {
		t.Errorf("headers %v", header)
	}
	for range 2 {
		_, err = ask(client, "user_42")
		must(t, err)
	}
	if asked := fake.Asked()[0]; asked.Subject != "user_42" || asked.Resource != checkMethod || asked.Cost != 1 {
		t.Errorf("asked %+v", asked)
	}
}

func TestGuardDenies(t *testing.T) {
	blocked := weirtest.Denied(0)
	blocked.Decision.RetryAfterMS = weir.Number{}
	blocked.Decision.Denial = &weir.Denial{Code: weir.CodeSubjectBlocked, Message: "The subject is blocked."}
	fake := weirtest.Script(weirtest.Denied(1500*time.Millisecond), blocked, weirtest.NoDecisionDenied(weir.CauseTimeout))
	client := connect(t, &Guard{Checker: fake, Subject: Metadata("x-customer")}, nil)
	for i, want := range []struct {
		code   codes.Code
		reason string
		retry  time.Duration
	}{
		{codes.ResourceExhausted, weir.CodeRateLimitExceeded, 1500 * time.Millisecond},
		{codes.ResourceExhausted, weir.CodeSubjectBlocked, 0},
		{codes.Unavailable, weir.CodeLimiterUnavailable, 0},
	} {
		header, err := ask(client, "user_42")
		s := status.Convert(err)
		if s.Code() != want.code {
			t.Fatalf("%d: %v", i, err)
		}
		reason, retry := detailsOf(s)
		if reason != want.reason || retry != want.retry {
			t.Errorf("%d: %q, %v", i, reason, retry)
		}
		if i == 0 && !slices.Equal(header.Get("retry-after"), []string{"2"}) {
			t.Errorf("headers %v", header)
		}
	}
}

func detailsOf(s *status.Status) (reason string, retry time.Duration) {
	for _, detail := range s.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			reason = detail.Reason
		case *errdetails.RetryInfo:
			retry = detail.RetryDelay.AsDuration()
		}
	}
	return reason, retry
}

func TestGuardLogsMisuse(t *testing.T) {
	var log bytes.Buffer
	client, err := weir.New("http://localhost:1", "weir_test_key")
	must(t, err)
	defer client.Close()
	guard := &Guard{Checker: client, Subject: Metadata("x-customer"), Logger: slog.New(slog.NewTextHandler(&log, nil))}
	if _, err := ask(connect(t, guard, nil), ""); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "subject") {
		t.Errorf("a call without a subject: %v", err)
	}
	if strings.Count(log.String(), "level=ERROR") != 1 || !strings.Contains(log.String(), "subject is empty") {
		t.Errorf("the log has %s", log.String())
	}
}

func TestGuardDoesAsItsFieldsSay(t *testing.T) {
	fake := weirtest.Script(weirtest.Allowed(), weirtest.Denied(time.Second), weirtest.Misuse("UNKNOWN_PLAN"))
	guard := &Guard{
		Checker:    fake,
		Subject:    func(context.Context, string) string { return "user_42" },
		Resource:   func(context.Context, string) string { return "orders:create" },
		Cost:       func(context.Context, string) int64 { return 3 },
		Plan:       func(context.Context, string) string { return "pro" },
		Attributes: func(context.Context, string) map[string]string { return map[string]string{"region": "eu"} },
		Skip:       func(ctx context.Context, _ string) bool { return incoming(ctx, "x-customer") == "skipped" },
		OnDenied:   func(context.Context, weir.Decision) error { return status.Error(codes.Aborted, "denied") },
		OnMisuse:   func(context.Context, error) error { return status.Error(codes.DataLoss, "misuse") },
	}
	client := connect(t, guard, nil)
	for i, want := range []codes.Code{codes.OK, codes.Aborted, codes.DataLoss} {
		if _, err := ask(client, ""); status.Code(err) != want {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
	_, err := ask(client, "skipped")
	must(t, err)
	asked := fake.Asked()
	if len(asked) != 3 || asked[0].Resource != "orders:create" || asked[0].Cost != 3 || asked[0].Plan != "pro" ||
		!maps.Equal(asked[0].Attributes, map[string]string{"region": "eu"}) {
		t.Errorf("asked %+v", asked)
	}
}

func TestGuardChecksAStreamOnce(t *testing.T) {
	fake := weirtest.Script(weirtest.Allowed(), weirtest.Denied(time.Second))
	client := connect(t, &Guard{Checker: fake, Subject: func(context.Context, string) string { return "user_42" }}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	must(t, err)
	_, err = stream.Recv()
	must(t, err)
	header, err := stream.Header()
	if err != nil || !slices.Equal(header.Get("x-ratelimit-limit"), []string{"100"}) {
		t.Errorf("headers %v, %v", header, err)
	}
	denied, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	must(t, err)
	if _, err := denied.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a denied stream: %v", err)
	}
	if asked := fake.Asked(); asked[0].Resource != watchMethod {
		t.Errorf("asked %+v", asked)
	}
}

// A signalling checker reports each check, and lets a test end the caller after it.
type signalling struct {
	*weirtest.Fake
	checked chan struct{}
}

func (s signalling) Check(ctx context.Context, check weir.Check) (weir.Decision, error) {
	defer close(s.checked)
	return s.Fake.Check(ctx, check)
}

func TestGuardEndsADelayWithItsCall(t *testing.T) {
	checker := signalling{weirtest.Script(weirtest.Delayed(time.Hour)), make(chan struct{})}
	client := connect(t, &Guard{Checker: checker, Subject: func(context.Context, string) string { return "user_42" }}, nil)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-checker.checked
		cancel()
	}()
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
}

func TestGuardEndsACheckWithItsCall(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	guard := Guard{Checker: weirtest.AllowAll(), Subject: func(context.Context, string) string { return "user_42" }}
	if err := guard.admit(ctx, checkMethod, func(metadata.MD) error { return nil }); status.Code(err) != codes.Canceled {
		t.Errorf("%v", err)
	}
}

// A late checker answers when the call has ended.
type late struct{ weir.Checker }

func (l late) Check(ctx context.Context, check weir.Check) (weir.Decision, error) {
	<-ctx.Done()
	return l.Checker.Check(context.WithoutCancel(ctx), check)
}

// A silent transport is a server that does not answer before the call has ended.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// A serverStream is what the guard uses of a stream.
type serverStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s serverStream) Context() context.Context  { return s.ctx }
func (serverStream) SetHeader(metadata.MD) error { return nil }

// A headerSetter is what the guard uses of a unary call.
type headerSetter struct{ grpc.ServerTransportStream }

func (headerSetter) SetHeader(metadata.MD) error { return nil }

// A customer chooses the deadline of a call. With one that is shorter than the check, the fallback
// would allow every call.
func TestGuardRunsNoHandlerAfterTheCallEnds(t *testing.T) {
	client, err := weir.New("http://weir.invalid", "weir_test_key", weir.WithTransport(silent{}), weir.WithTimeout(time.Hour))
	must(t, err)
	denying, err := weir.New("http://weir.invalid", "weir_test_key", weir.WithTransport(silent{}), weir.WithTimeout(time.Hour), weir.WithOnFailure(weir.Deny))
	must(t, err)
	for name, checker := range map[string]weir.Checker{
		"no decision": client, "no decision, denied": denying, "allowed too late": late{weirtest.AllowAll()}, "denied too late": late{weirtest.DenyAll()},
	} {
		for want, ctx := range map[codes.Code]context.Context{codes.DeadlineExceeded: expired(t), codes.Canceled: cancelled()} {
			guard := Guard{Checker: checker, Subject: func(context.Context, string) string { return "user_42" }}
			ctx = grpc.NewContextWithServerTransportStream(ctx, headerSetter{})
			_, err := guard.Unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: checkMethod}, func(context.Context, any) (any, error) {
				t.Errorf("%s, %s: the handler of a unary call runs", name, want)
				return nil, nil
			})
			if status.Code(err) != want {
				t.Errorf("%s, %s: a unary call: %v", name, want, err)
			}
			err = guard.Stream(nil, serverStream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: watchMethod}, func(any, grpc.ServerStream) error {
				t.Errorf("%s, %s: the handler of a stream runs", name, want)
				return nil
			})
			if status.Code(err) != want {
				t.Errorf("%s, %s: a stream: %v", name, want, err)
			}
		}
	}
}

func expired(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 0)
	t.Cleanup(cancel)
	return ctx
}

func cancelled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestLimitAsksBeforeEachCall(t *testing.T) {
	fake := weirtest.Script(weirtest.Allowed(), weirtest.Denied(time.Second), weirtest.Misuse("UNKNOWN_PLAN"), weirtest.Allowed(), weirtest.Denied(time.Second))
	client := connect(t, nil, &Limit{Checker: fake})
	for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.Internal} {
		if _, err := ask(client, ""); status.Code(err) != want {
			t.Errorf("%d: %v, want %v", i, err, want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
	must(t, err)
	if _, err := client.Watch(ctx, &healthpb.HealthCheckRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a denied stream: %v", err)
	}
	if asked := fake.Asked()[0]; asked.Subject != "passthrough:///shop" || asked.Resource != checkMethod {
		t.Errorf("asked %+v", asked)
	}
}

func TestLimitDoesAsItsFieldsSay(t *testing.T) {
	fake := weirtest.Script(weirtest.Delayed(time.Millisecond), weirtest.Denied(time.Second))
	client := connect(t, nil, &Limit{
		Checker:  fake,
		Subject:  func(context.Context, string, string) string { return "partner" },
		Resource: func(context.Context, string, string) string { return "partner:calls" },
		Cost:     func(context.Context, string, string) int64 { return 2 },
		MaxWait:  -1,
	})
	_, err := ask(client, "")
	must(t, err)
	if _, err := ask(client, ""); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
	if asked := fake.Asked()[0]; asked.Subject != "partner" || asked.Resource != "partner:calls" || asked.Cost != 2 {
		t.Errorf("asked %+v", asked)
	}
}
