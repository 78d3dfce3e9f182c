package api

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"weir/internal/check"
	"weir/internal/tenants"
)

// A gateway gets everything that it shows to its customer: the verdict, the limit, the remaining
// units, and when there will be more.
func TestEnvoyDecision(t *testing.T) {
	s := newEnvoyStack(t)
	ask := asking(described("subject", "user_1"))
	for i := range uint32(perSubject) {
		r := s.answered(ask)
		require.Equal(t, rls.RateLimitResponse_OK, r.OverallCode)
		d := r.Statuses[0]
		require.Equal(t, perSubject-1-i, d.LimitRemaining)
		require.Equal(t, uint32(perSubject), d.CurrentLimit.RequestsPerUnit)
		require.Equal(t, rls.RateLimitResponse_RateLimit_HOUR, d.CurrentLimit.Unit)
		require.Equal(t, "per-subject", d.CurrentLimit.Name)
		require.Nil(t, d.CurrentLimit.UnitMultiplier)
		require.InDelta(t, 3600, d.DurationUntilReset.AsDuration().Seconds(), 60)
		require.Contains(t, envoyHeaders(r)["RateLimit"], `"per-subject";r=`)
		require.Equal(t, `"per-subject";q=5;w=3600`, envoyHeaders(r)["RateLimit-Policy"])
		require.Empty(t, r.RawBody)
	}
	r := s.answered(ask)
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.OverallCode)
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.Statuses[0].Code)
	require.Zero(t, r.Statuses[0].LimitRemaining)
	headers := envoyHeaders(r)
	require.NotEmpty(t, headers["Retry-After"])
	require.Equal(t, "0", headers["X-RateLimit-Remaining"])
	require.Equal(t, "application/json", headers["Content-Type"])
	require.Contains(t, string(r.RawBody), `"code":"RATE_LIMIT_EXCEEDED"`)

	r = s.answered(asking(described("subject", "user_1", "plan", "pro")))
	require.Equal(t, rls.RateLimitResponse_OK, r.OverallCode)
	require.Equal(t, uint32(44), r.Statuses[0].LimitRemaining, "the plan's number, and what was used")
	r = s.answered(asking(described("subject", "user_1", "resource", "nothing-limits-this")))
	require.Equal(t, rls.RateLimitResponse_OK, r.OverallCode)
	require.Nil(t, r.Statuses[0].CurrentLimit)
	r = s.answered(asking(described("subject", "user_1", "plan", "boundless")))
	require.Equal(t, rls.RateLimitResponse_OK, r.OverallCode)
	require.Nil(t, r.Statuses[0].CurrentLimit)
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, s.answered(asking(described("subject", "blocked"))).OverallCode)
}

// All descriptors are charged, or none is.
func TestEnvoyAllOrNone(t *testing.T) {
	s := newEnvoyStack(t)
	both := asking(described("subject", "u", "resource", "one"), described("subject", "u"))
	require.Equal(t, rls.RateLimitResponse_OK, s.answered(both).OverallCode)
	for range 3 {
		r := s.answered(both)
		require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.OverallCode)
		require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.Statuses[0].Code)
		require.Equal(t, rls.RateLimitResponse_OK, r.Statuses[1].Code)
		require.Equal(t, uint32(perSubject-1), r.Statuses[1].LimitRemaining)
		require.Contains(t, envoyHeaders(r)["RateLimit"], `"one"`, "the headers are those of the denial")
	}
	require.EqualValues(t, perSubject-1, s.remaining("u", "default"))

	// A counter that two descriptors share counts both.
	twice := asking(described("subject", "v"), described("subject", "v"))
	require.Equal(t, uint32(perSubject-2), s.answered(twice).Statuses[0].LimitRemaining)
	require.Equal(t, uint32(perSubject-4), s.answered(twice).Statuses[1].LimitRemaining)
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, s.answered(twice).OverallCode)
	require.EqualValues(t, 1, s.remaining("v", "default"))
}

// The cost is that of the request, or of each descriptor. 0 consumes nothing.
func TestEnvoyCost(t *testing.T) {
	s := newEnvoyStack(t)
	ask := asking(described("subject", "u", "resource", "costly"), costing(3, described("subject", "v", "resource", "costly")),
		costing(0, described("subject", "w", "resource", "costly")))
	ask.HitsAddend = 2
	r := s.answered(ask)
	require.Equal(t, rls.RateLimitResponse_OK, r.OverallCode)
	for i, want := range []uint32{8, 7, 10} {
		require.Equal(t, want, r.Statuses[i].LimitRemaining)
	}
	r = s.answered(asking(costing(1<<63, described("subject", "x", "resource", "costly"))))
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.OverallCode)
	require.Empty(t, envoyHeaders(r)["Retry-After"], "no wait can help")
	require.Contains(t, string(r.RawBody), "COST_EXCEEDS_LIMIT")
	// Each of two descriptors fits, but not both: the message names what was asked together.
	r = s.answered(asking(costing(6, described("subject", "z", "resource", "costly")), costing(7, described("subject", "z", "resource", "costly"))))
	require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, r.OverallCode)
	require.Contains(t, string(r.RawBody), `"cost":6,`)
	require.Contains(t, string(r.RawBody), "A cost of 13 can never pass: ")

	// Weir ignores limits of descriptors and returns no units. The rules still apply.
	d := described("subject", "y", "resource", "costly")
	d.Limit = &envoyratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1000}
	require.Equal(t, uint32(9), s.answered(asking(d)).Statuses[0].LimitRemaining)
	d.IsNegativeHits = true
	require.Equal(t, uint32(9), s.answered(asking(d)).Statuses[0].LimitRemaining)
}

// All other entries of a descriptor are attributes, with a valid name.
func TestEnvoyAttributes(t *testing.T) {
	s := newEnvoyStack(t)
	rule := hourly("by-path", "odd", 2, "attributes._path", "attributes.generic_key.2")
	_, err := s.db.Store.CreateRule(t.Context(), s.actor, rule)
	require.NoError(t, err)
	long := strings.Repeat("x", 5000)
	for _, value := range []string{"/a", "", long, long + "y", "\x00"} {
		ask := asking(described("subject", "u", "resource", "odd", ":path", value, "generic_key", "1", "generic_key", "2"))
		require.Equal(t, uint32(1), s.answered(ask).Statuses[0].LimitRemaining, "%.20q has its own counter", value)
		require.Equal(t, uint32(0), s.answered(ask).Statuses[0].LimitRemaining)
		require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, s.answered(ask).OverallCode)
	}
}

// A customer can send any value: the call never fails, and no limit is bypassed.
func TestEnvoyHostileValues(t *testing.T) {
	s := newEnvoyStack(t)
	for name, c := range map[string]struct {
		request *rls.RateLimitRequest
		code    string
	}{
		"no subject":     {asking(described("remote_address", "10.0.0.1")), "SUBJECT_MISSING"},
		"no entries":     {asking(described()), "SUBJECT_MISSING"},
		"empty subject":  {asking(described("subject", "")), "SUBJECT_MISSING"},
		"two subjects":   {asking(described("subject", "a", "subject", "b")), "SUBJECT_INVALID"},
		"control":        {asking(described("subject", "a\r\nb")), "SUBJECT_INVALID"},
		"zero":           {asking(described("subject", "a\x00b")), "SUBJECT_INVALID"},
		"long":           {asking(described("subject", strings.Repeat("a", 257))), "SUBJECT_INVALID"},
		"very long":      {asking(described("subject", strings.Repeat("a", 200_000))), "SUBJECT_INVALID"},
		"resource":       {asking(described("subject", "fine", "resource", "a\tb")), "RESOURCE_INVALID"},
		"two resources":  {asking(described("subject", "fine", "resource", "a", "resource", "b")), "RESOURCE_INVALID"},
		"one of several": {asking(described("subject", "fine"), described("subject", "\x7f")), "SUBJECT_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			response, err := s.call(c.request)
			require.NoError(t, err)
			require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, response.OverallCode)
			require.Len(t, response.Statuses, len(c.request.Descriptors))
			require.Contains(t, string(response.RawBody), c.code)
			require.Equal(t, decisionDeny, envoyHeaders(response)[decisionHeader])
		})
	}
	s.untouched("fine")
}

// callRaw sends a message unchanged, because libraries refuse texts that are not UTF-8.
func (s *envoyStack) callRaw(message []byte) (*rls.RateLimitResponse, error) {
	s.t.Helper()
	ctx := metadata.AppendToOutgoingContext(s.t.Context(), keyMetadata, s.key)
	var answer wireMessage
	err := s.conn.Invoke(ctx, envoyPath, &wireMessage{bytes: message}, &answer, grpc.ForceCodecV2(wireCodec{encoding.GetCodecV2(grpcproto.Name)}))
	if err != nil {
		return nil, err
	}
	response := new(rls.RateLimitResponse)
	require.NoError(s.t, proto.Unmarshal(answer.bytes, response))
	return response, nil
}

// A protobuf library refuses a message with a text that is not UTF-8, and a gateway whose call
// fails allows the request. Weir denies it, or treats it as an ordinary value.
func TestEnvoyTextsThatAreNotUTF8(t *testing.T) {
	s := newEnvoyStack(t)
	message := func(entries ...string) []byte {
		b, err := proto.Marshal(asking(described(entries...)))
		require.NoError(t, err)
		return []byte(strings.ReplaceAll(string(b), "BAD", "\xff\xfe\xc0"))
	}
	require.Error(t, proto.Unmarshal(message("subject", "aBAD"), new(rls.RateLimitRequest)), "what a library says")
	for _, entries := range [][]string{{"subject", "aBAD"}, {"subject", "fine", "resource", "BAD"}} {
		response, err := s.callRaw(message(entries...))
		require.NoError(t, err)
		require.Equal(t, rls.RateLimitResponse_OVER_LIMIT, response.OverallCode)
	}
	s.untouched("fine")
	for i := range uint32(3) {
		response, err := s.callRaw(message("subject", "fine", "resource", "ip", "ip", "BAD"))
		require.NoError(t, err)
		require.Equal(t, 2-i, response.Statuses[0].LimitRemaining)
	}
	for _, malformed := range [][]byte{{0xff}, {0x0a, 0x05, 'a'}, {0x12, 0x02, 0x0a, 0x09}, {0x12, 0x01, 0xff}} {
		_, err := s.callRaw(malformed)
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%x", malformed)
	}
}

// Only mistakes of the gateway and failures of Weir are errors of the call, for which the failure
// mode applies.
func TestEnvoyErrors(t *testing.T) {
	s := newEnvoyStack(t)
	fine := asking(described("subject", "u"))
	many := asking()
	for range maxDescriptors + 1 {
		many.Descriptors = append(many.Descriptors, described("subject", "u"))
	}
	crowded := described("subject", "u")
	for i := range 17 {
		crowded.Entries = append(crowded.Entries, &envoyratelimit.RateLimitDescriptor_Entry{Key: "k" + itoa(int64(i)), Value: "v"})
	}
	_, checkless, err := s.db.Store.CreateKey(t.Context(), s.actor, tenants.NewAPIKey{Name: "reader", Scopes: []tenants.Scope{tenants.ScopeRead}})
	require.NoError(t, err)
	_, operator, err := s.db.Store.CreateOperatorKey(t.Context(), "test")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		keys    []string
		request *rls.RateLimitRequest
		code    codes.Code
		reason  string
	}{
		"no key":           {nil, fine, codes.Unauthenticated, "MISSING_KEY"},
		"malformed key":    {[]string{"weir_x"}, fine, codes.Unauthenticated, "MALFORMED_KEY"},
		"two keys":         {[]string{s.key, s.key}, fine, codes.InvalidArgument, "INVALID_HEADER"},
		"lacking scope":    {[]string{checkless.Secret()}, fine, codes.PermissionDenied, "INSUFFICIENT_SCOPE"},
		"operator":         {[]string{operator.Secret()}, fine, codes.PermissionDenied, "INSUFFICIENT_SCOPE"},
		"no descriptors":   {[]string{s.key}, asking(), codes.InvalidArgument, "INVALID_REQUEST"},
		"many descriptors": {[]string{s.key}, many, codes.InvalidArgument, "INVALID_REQUEST"},
		"many entries":     {[]string{s.key}, asking(crowded), codes.InvalidArgument, "INVALID_REQUEST"},
		"empty name":       {[]string{s.key}, asking(described("subject", "u", "", "v")), codes.InvalidArgument, "INVALID_REQUEST"},
		"unknown plan":     {[]string{s.key}, asking(described("subject", "u", "plan", "none")), codes.InvalidArgument, "UNKNOWN_PLAN"},
		"another tenant's": {[]string{s.key}, asking(described("subject", "u", "plan", "theirs")), codes.InvalidArgument, "UNKNOWN_PLAN"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			for _, key := range c.keys {
				ctx = metadata.AppendToOutgoingContext(ctx, keyMetadata, key)
			}
			var trailer metadata.MD
			_, err := rls.NewRateLimitServiceClient(s.conn).ShouldRateLimit(ctx, c.request, grpc.Trailer(&trailer))
			require.Equal(t, c.code, status.Code(err), "%v", err)
			require.Contains(t, err.Error(), c.reason)
			require.NotContains(t, err.Error(), s.key)
			require.Equal(t, []string{decisionNone}, trailer.Get("weir-decision"))
			require.Equal(t, []string{c.reason}, trailer.Get("weir-code"))
		})
	}
	s.untouched("u")
	large := asking(described("subject", strings.Repeat("a", maxMessage)))
	_, err = s.call(large)
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	require.Equal(t, rls.RateLimitResponse_OK, s.answered(fine).OverallCode, "the connection is as good as before")
}

// A server that is not ready, overloaded or failing returns an error, and counts nothing.
func TestEnvoyFailures(t *testing.T) {
	s := newEnvoyStack(t)
	fine := asking(described("subject", "u"))
	call := func(change func(*Config, *Deps)) error {
		g := NewGRPC(nil)
		conn := s.serveCalls(g)
		if change != nil {
			cfg, deps := Config{Headers: bothStyles, GRPC: g}, s.deps
			deps.Metrics = NewMetrics(prometheusRegistry())
			change(&cfg, &deps)
			New(cfg, deps)
		}
		ctx := metadata.AppendToOutgoingContext(t.Context(), keyMetadata, s.key)
		_, err := rls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, fine)
		return err
	}
	err := call(nil)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "NOT_READY")
	err = call(func(_ *Config, d *Deps) { d.Metrics.inFlight.Store(DefaultMaxInFlight) })
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "OVERLOADED")
	err = call(func(_ *Config, d *Deps) { d.Checker = nil })
	require.Equal(t, codes.Internal, status.Code(err))
	require.ErrorContains(t, err, "INTERNAL")
	require.NotContains(t, err.Error(), "nil pointer", "what went wrong inside is for the log")
	away := s.db.Open(tenants.Config{})
	away.Close()
	err = call(func(_ *Config, d *Deps) {
		d.Policies = check.NewPolicies(away, check.NewKeys([16]byte{7}), d.Logger, check.NewMetrics(prometheusRegistry()))
	})
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.ErrorContains(t, err, "POLICY_UNAVAILABLE")
	s.untouched("u")
}

// With concurrent gateways, two limits that are decided together are both exact.
func TestEnvoyConcurrent(t *testing.T) {
	s := newEnvoyStack(t)
	_, err := s.db.Store.CreateRule(t.Context(), s.actor, hourly("shared", "shared:*", 60, "attributes.org"))
	require.NoError(t, err)
	_, err = s.db.Store.CreateRule(t.Context(), s.actor, hourly("each", "shared:each", 1000, "subject"))
	require.NoError(t, err)
	var clients sync.WaitGroup
	var allowed atomic.Int64
	for client := range 16 {
		r := rand.New(rand.NewPCG(1, uint64(client)))
		clients.Go(func() {
			for range 20 {
				ask := asking(described("subject", "a", "resource", "shared:each", "org", "acme"),
					costing(2, described("subject", "b", "resource", "shared:other", "org", "acme")))
				if r.IntN(2) == 0 {
					ask.Descriptors[0], ask.Descriptors[1] = ask.Descriptors[1], ask.Descriptors[0]
				}
				response, err := s.call(ask)
				if err != nil {
					t.Error(err)
				} else if response.OverallCode == rls.RateLimitResponse_OK {
					allowed.Add(1)
				}
			}
		})
	}
	clients.Wait()
	require.EqualValues(t, 20, allowed.Load(), "3 units each, of 60")
	r := s.answered(asking(costing(0, described("subject", "a", "resource", "shared:each"))))
	require.Equal(t, uint32(980), r.Statuses[0].LimitRemaining, "charged with the other, or not at all")
}

// Generic tools can query health and the list of services.
func TestHealthAndReflection(t *testing.T) {
	s := newEnvoyStack(t)
	health := healthpb.NewHealthClient(s.conn)
	for _, service := range []string{"", envoyService} {
		answer, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, answer.Status)
	}
	stream, err := reflectionpb.NewServerReflectionClient(s.conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: envoyService + "." + envoyMethod},
	}))
	answer, err := stream.Recv()
	require.NoError(t, err)
	require.Greater(t, len(answer.GetFileDescriptorResponse().GetFileDescriptorProto()), 3, "the service's file and all that it needs")
	require.NoError(t, stream.CloseSend())

	s.grpc.Drain()
	state, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, state.Status)
	require.Equal(t, rls.RateLimitResponse_OK, s.answered(asking(described("subject", "u"))).OverallCode, "calls are answered to the end")
}

// Reflection needs no key. A call ends when it has sent much more than tools need, because the
// library keeps what it has not answered, and there are few calls in a second.
func TestReflectionIsBounded(t *testing.T) {
	s := newEnvoyStack(t)
	client := reflectionpb.NewServerReflectionClient(s.conn)
	ask := &reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_FileContainingSymbol{FileContainingSymbol: envoyService + "." + envoyMethod},
	}
	stream, err := client.ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	for range besideBody / 32 {
		if stream.Send(ask) != nil {
			break
		}
	}
	answers := 0
	for ; err == nil; answers++ {
		_, err = stream.Recv()
	}
	require.NotErrorIs(t, err, io.EOF)
	require.Less(t, answers, besideBody/32)

	for range 10 * reflectionBurst {
		if stream, err = client.ServerReflectionInfo(t.Context()); err == nil {
			require.NoError(t, stream.CloseSend())
			_, err = stream.Recv()
		}
		if status.Code(err) == codes.ResourceExhausted {
			break
		}
		require.ErrorIs(t, err, io.EOF)
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(err))
	_, err = healthpb.NewHealthClient(s.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	require.NoError(t, err)
}

// Open calls without a key must not fill the server, and not delay health checks. Before, 256 calls
// of one client that stay open made the load balancer take the instance away.
func TestCallsBesideAreBounded(t *testing.T) {
	s := newEnvoyStack(t)
	health := healthpb.NewHealthClient(s.conn)
	watching, stop := context.WithCancel(t.Context())
	defer stop()
	watch := func() error {
		stream, err := health.Watch(watching, &healthpb.HealthCheckRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	open := 0
	var refused error
	for refused == nil {
		if refused = watch(); refused == nil {
			open++
		}
	}
	require.Equal(t, codes.ResourceExhausted, status.Code(refused), "the network has its share")
	require.Equal(t, maxAside/5, open)
	check := func() error {
		_, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{})
		return err
	}
	require.NoError(t, check())
	require.Equal(t, rls.RateLimitResponse_OK, s.answered(asking(described("subject", "u"))).OverallCode)
	stop()
	watching = t.Context()
	require.Eventually(t, func() bool { return watch() == nil }, time.Minute, time.Millisecond, "the places are free again")
}

// A message of a megabyte can have half a million empty entries or fields. The parser stops at the
// first one that is too many. Before, it went through all of them, which took some 15 ms.
func TestManyFieldsOfAMessage(t *testing.T) {
	t.Parallel()
	const malformed = "\xff"
	nested := func(tag byte, content string) string {
		return string(protowire.AppendVarint([]byte{tag}, uint64(len(content)))) + content
	}
	repeated := func(text string, n int) string { return strings.Repeat(text, n) }
	fine := nested(0x12, nested(0x0a, ""))
	group := func(content string) string { return "\x53" + content + "\x54" }
	for name, c := range map[string]struct {
		message string
		want    *Problem
	}{
		"entries":               {nested(0x12, repeated("\x0a\x00", maxEntries+1)+malformed), tooManyEntries(0)},
		"entries of a later":    {fine + nested(0x12, repeated("\x0a\x00", maxMessage/2-20)) + malformed, tooManyEntries(1)},
		"descriptors":           {repeated(fine, maxDescriptors) + "\x12\x00" + malformed, tooManyDescriptors()},
		"unknown fields":        {fine + repeated("\x50\x01", maxFields-2), nil},
		"many unknown fields":   {fine + repeated("\x50\x01", maxFields-1) + malformed, tooManyFields()},
		"fields of an entry":    {nested(0x12, nested(0x0a, repeated("\x0a\x00", maxFields-1)+malformed)), tooManyFields()},
		"fields of hits":        {nested(0x12, nested(0x1a, repeated("\x08\x01", maxFields-1)+malformed)), tooManyFields()},
		"a group":               {fine + group(repeated("\x50\x01", maxFields-3)), nil},
		"a long group":          {fine + group(repeated("\x50\x01", maxFields-2)+malformed), tooManyFields()},
		"groups":                {fine + repeated("\x53", maxFields-2) + repeated("\x54", maxFields-2), nil},
		"many groups":           {fine + repeated("\x53", maxMessage/2), tooManyFields()},
		"a group that ends not": {fine + group("\x50\x01")[:3], notARequest()},
		"an end of another":     {fine + "\x53\x5c", notARequest()},
	} {
		sc := envoyScratches.get()
		require.Equal(t, c.want, sc.envoy.parse([]byte(c.message)), name)
		require.LessOrEqual(t, cap(sc.envoy.entries), 4*maxDescriptors*maxEntries)
		envoyScratches.put(sc)
	}
}

// The hand-written parser accepts every message that the library accepts.
func FuzzEnvoyRequest(f *testing.F) {
	d := costing(7, described("subject", "a", "resource", "b", "k", "v"))
	d.Limit = &envoyratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 3}
	full := &rls.RateLimitRequest{Domain: "edge", Descriptors: []*envoyratelimit.RateLimitDescriptor{d, described("x", "")}, HitsAddend: 9}
	seed, err := proto.Marshal(full)
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte{})
	f.Add(slices.Concat(seed, []byte{0x98, 0x06, 0x01}))                                    // an unknown field of a later version
	f.Add(protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 1<<40)) // more than 32 bits
	f.Add(slices.Concat(seed, []byte{0x53, 0x50, 0x01, 0x54}))                              // an unknown group
	f.Add(slices.Concat(seed, []byte{0x12, 40}, bytes.Repeat([]byte{0x0a, 0}, 20)))         // too many entries
	f.Fuzz(func(t *testing.T, message []byte) {
		var q envoyQuestion
		p := q.parse(message)
		want := new(rls.RateLimitRequest)
		if err := proto.Unmarshal(message, want); err != nil {
			return // the text need not be UTF-8 here
		}
		n := len(want.Descriptors)
		crowded := slices.ContainsFunc(want.Descriptors, func(d *envoyratelimit.RateLimitDescriptor) bool { return len(d.Entries) > maxEntries })
		if n == 0 || n > maxDescriptors || crowded || q.fieldsRead > maxFields {
			require.NotNil(t, p)
			return
		}
		require.Nil(t, p)
		require.Equal(t, want.Domain, string(q.domain))
		require.Equal(t, max(1, int64(want.HitsAddend)), q.hits)
		require.Len(t, q.descriptors, len(want.Descriptors))
		for i, d := range q.descriptors {
			from := want.Descriptors[i]
			require.Equal(t, len(from.Entries), d.count)
			for j, e := range q.entries[d.first : d.first+d.count] {
				require.Equal(t, from.Entries[j].Key, string(e.Key))
				require.Equal(t, from.Entries[j].Value, string(e.Value))
			}
			require.Equal(t, from.HitsAddend != nil || from.IsNegativeHits, d.ownHits)
			if from.HitsAddend != nil && !from.IsNegativeHits {
				require.Equal(t, min(from.HitsAddend.Value, uint64(maxCost)), uint64(d.hits))
			}
		}
	})
}
