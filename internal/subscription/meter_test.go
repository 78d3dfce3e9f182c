package subscription

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// An event that the provider may have taken is unsure, whatever answers a repetition of it: neither
// the library nor the transport, which repeats requests on a connection that was used before, may
// hide the first sending.
func TestMeterEventThatMayHaveBeenTaken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		warm   bool // the connection was used before
		closed bool // then nobody listens any more
		asked  int32
	}{
		"new connection, then refused connections":  {closed: true, asked: 1},
		"new connection, then a refusal":            {asked: 1},
		"used connection, then refused connections": {warm: true, closed: true, asked: 2},
		"used connection, then a refusal":           {warm: true, asked: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			var server *httptest.Server
			taken := int32(1)
			if c.warm {
				taken = 2
			}
			server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch n := asked.Add(1); {
				case n < taken:
					_, _ = io.WriteString(w, `{"object": "billing.meter_event"}`)
				case n == taken:
					if c.closed {
						_ = server.Listener.Close()
					}
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(http.StatusUnauthorized)
					_, _ = io.WriteString(w, `{"error": {"type": "invalid_request_error", "message": "no"}}`)
				}
			}))
			defer server.Close()
			transport := &http.Transport{}
			defer transport.CloseIdleConnections()
			client := NewClient("rk_test_secret", server.URL, &http.Client{Transport: transport})
			event := MeterEvent{Name: "api_requests", Customer: "cus_1", Value: 1, Identifier: "a", At: time.Unix(1, 0)}
			if c.warm {
				require.Nil(t, client.SendMeterEvent(t.Context(), event))
			}
			failed := client.SendMeterEvent(t.Context(), event)
			require.NotNil(t, failed)
			require.True(t, failed.Unsure, failed.Why)
			require.Equal(t, c.asked, asked.Load())
		})
	}
}

// An event that certainly was not taken is not unsure.
func TestMeterEventThatWasNotTaken(t *testing.T) {
	t.Parallel()
	event := MeterEvent{Name: "api_requests", Customer: "cus_1", Value: 1, Identifier: "a", At: time.Unix(1, 0)}
	failed := NewClient("rk_test_secret", "http://127.0.0.1:1", nil).SendMeterEvent(t.Context(), event)
	require.Equal(t, &MeterError{Why: "the provider cannot be reached"}, failed)
	for _, status := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests} {
		for _, start := range []func(*httptest.Server){(*httptest.Server).Start, (*httptest.Server).StartTLS} {
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"error": {"type": "invalid_request_error", "message": "no"}}`)
			}))
			server.EnableHTTP2 = true
			start(server)
			failed = NewClient("rk_test_secret", server.URL, server.Client()).SendMeterEvent(t.Context(), event)
			server.Close()
			require.NotNil(t, failed)
			require.False(t, failed.Unsure, "the answer is about the only sending")
			require.True(t, strings.HasPrefix(failed.Why, "the provider answered "), failed.Why)
		}
	}
}
