package load

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A gRPC server accepts the calls, and their verdicts and statuses are counted.
func TestClosedAsksOverGRPC(t *testing.T) {
	var asked atomic.Int64
	handler := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "\x00\x00\x00\x00\x03abc" || r.URL.Path != "/service/Method" || r.Header.Get("Weir-Key") != "key" ||
			r.Header.Get("Content-Type") != "application/grpc" || r.ProtoMajor != 2 {
			t.Errorf("wrong request: %s %q %v", r.Proto, body, r.Header)
		}
		n := asked.Add(1)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		if n%4 == 3 {
			w.Header().Set("Grpc-Status", "14")
			return
		}
		// The response is longer than a frame, so the client must update the connection's window.
		answer := append([]byte{0, 0, 0, 0x50, 2, 8, byte(1 + n%2)}, make([]byte, 20_480)...)
		_, _ = w.Write(answer)
		w.Header().Set("Grpc-Status", "0")
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(handler))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	target := Target{Addrs: []string{server.Listener.Addr().String()}, Protocol: GRPC}
	requests := []Request{{Path: "/service/Method", Key: "key", Body: []byte("abc")}}
	r, err := Closed(t.Context(), target, NewTraffic(requests, Uniform, 1), Plan{
		Connections: 12, Warm: 20 * time.Millisecond, Measure: 200 * time.Millisecond, Begin: func() {}, End: func() {},
	})
	require.NoError(t, err)
	require.Equal(t, asked.Load(), r.Asked)
	require.Positive(t, r.Requests)
	require.InDelta(t, r.Requests/4, r.Failed, 30)
	require.InDelta(t, r.Requests/4, r.Denied, 30)
}
