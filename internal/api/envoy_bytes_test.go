package api

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/internal/limit"
	"weir/internal/overload"
	"weir/internal/places"
)

// A tenant sends many long messages, slowly. Each takes its length in memory, so only some of them
// are invited, and the others are refused. Short messages are decided.
func TestBytesOfMessages(t *testing.T) {
	s := newEnvoyStack(t)
	limits := callLimits
	limits.Body, limits.Head = time.Minute, time.Minute
	slow := &envoyStack{checkStack: s.checkStack, grpc: newGRPC(nil, limits)}
	slow.conn = slow.serveCalls(slow.grpc)
	deps := s.deps
	deps.Metrics = NewMetrics(prometheusRegistry())
	New(Config{Headers: bothStyles, GRPC: slow.grpc}, deps)

	conn, err := net.Dial("tcp", slow.conn.Target())
	require.NoError(t, err)
	framer := startHTTP2(t, conn)
	framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	begin := func(id uint32) {
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", envoyPath}, {":authority", "test"},
			{"content-type", "application/grpc"}, {keyMetadata, s.key}} {
			require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: block.Bytes(), EndHeaders: true}))
		require.NoError(t, framer.WriteData(id, false, []byte{0, 0, maxMessage >> 16, 0, 0}))
	}
	// outcome returns whether the server waits for the next message, and otherwise its answer.
	outcome := func() (id uint32, invited bool, answer string) {
		for {
			frame, err := framer.ReadFrame()
			require.NoError(t, err)
			switch f := frame.(type) {
			case *http2.WindowUpdateFrame:
				if f.StreamID != 0 {
					return f.StreamID, true, ""
				}
			case *http2.MetaHeadersFrame:
				for _, field := range f.Fields {
					answer += field.Name + ": " + field.Value + "\n"
				}
				return f.StreamID, false, answer
			}
		}
	}
	const calls, fit = 80, maxTenantBodies / (messagePrefix + maxMessage)
	var waiting []uint32
	for i := range uint32(calls) {
		begin(1 + 2*i)
	}
	for range calls {
		id, invited, answer := outcome()
		if invited {
			waiting = append(waiting, id)
		} else {
			require.Contains(t, answer, "weir-code: OVERLOADED\n")
			require.Contains(t, answer, "grpc-status: 14\n")
		}
	}
	require.Len(t, waiting, fit)
	_, err = slow.call(asking(described("subject", "u")))
	require.NoError(t, err, "a short message does not count")

	// A message that ends too early is answered. Then the next one may come.
	require.NoError(t, framer.WriteData(waiting[0], true, []byte("x")))
	id, _, answer := outcome()
	require.Equal(t, waiting[0], id)
	require.Contains(t, answer, "weir-code: MALFORMED_MESSAGE\n")
	begin(2*calls + 1)
	id, invited, _ := outcome()
	require.True(t, invited)
	require.EqualValues(t, 2*calls+1, id)
}

// A route reads at most 128 KiB of a request: it may do so once for each of its sources.
func TestBytesThatARouteReads(t *testing.T) {
	s := newEnvoyStack(t)
	s.contract.call(s.key, "PUT", "/v1/config", `{"routes":[{"slug":"edge","subject":["cookie:id"]}]}`).ok(200)
	ask := func(descriptors, size int, entries ...string) *rls.RateLimitResponse {
		request := &rls.RateLimitRequest{Domain: "edge"}
		for range descriptors {
			request.Descriptors = append(request.Descriptors, costing(0, described(append(entries, "cookie", "id=ada;"+strings.Repeat(" ", size))...)))
		}
		return s.answered(request)
	}
	require.Equal(t, rls.RateLimitResponse_OK, ask(6, 20<<10).OverallCode)
	require.Contains(t, string(ask(7, 20<<10).RawBody), `"REQUEST_INVALID"`)
	require.Equal(t, rls.RateLimitResponse_OK, ask(7, 20<<10, "subject", "ada").OverallCode, "no route is needed")
	require.Equal(t, rls.RateLimitResponse_OK, ask(6, 20<<10).OverallCode)
}

// Batches over HTTP, which may have 256 KiB, are bounded like long messages.
func TestBytesOfBatches(t *testing.T) {
	t.Parallel()
	c := newCapacity(NewMetrics(prometheusRegistry()), overload.Fixed(1000), places.NewProcessors(2))
	read := func(length int64) (*request, *Problem) {
		require.True(t, c.enter())
		defer c.leave()
		q := &request{ResponseWriter: httptest.NewRecorder(), capacity: c}
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), requestKey{}, q), http.MethodPost, "/v1/check/batch", strings.NewReader("{}"))
		r.Header.Set("Content-Type", jsonType)
		r.ContentLength = length
		sc := &scratch{tenant: limit.TenantID{1}, share: c.of(limit.TenantID{1})}
		return q, (&httpQuestion{r: r, batch: true}).read(sc)
	}
	var held []*request
	for range maxTenantBodies / maxBatchBody {
		q, p := read(maxBatchBody)
		require.Nil(t, p)
		held = append(held, q)
	}
	_, p := read(largeBody + 1)
	require.NotNil(t, p)
	require.Equal(t, codeOverloaded, p.Code)
	_, p = read(largeBody)
	require.Nil(t, p, "other bodies do not count")
	held[0].end()
	_, p = read(maxBatchBody)
	require.Nil(t, p)
}
