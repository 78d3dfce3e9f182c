package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// slowBody reports when it is read, and ends when it is released.
type slowBody struct {
	inside chan<- struct{}
	once   *sync.Once
	leave  <-chan struct{}
}

func (b slowBody) Read([]byte) (int, error) {
	b.once.Do(func() { b.inside <- struct{}{} })
	<-b.leave
	return 0, io.EOF
}

// If many clients send the bodies of device logins slowly, others can still sign in: a request
// takes a place for device logins only when its body is complete, and is not in flight before. Each
// network has a share of the bodies. Before, 28 addresses could keep everybody from signing in.
func TestSlowDeviceLogins(t *testing.T) {
	s := newCheckStack(t)
	lane := NewLane()
	handler := New(Config{Lane: lane}, s.deps)
	inside, leave := make(chan struct{}), make(chan struct{})
	refused := make(chan struct{}, 1000)
	poll := func(address string, body io.Reader) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, devicePollPath, body)
		r.RemoteAddr = address + ":1234"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Code
	}
	var sending sync.WaitGroup
	slow := func(address string) {
		sending.Go(func() {
			if poll(address, slowBody{inside, new(sync.Once), leave}) == http.StatusServiceUnavailable {
				refused <- struct{}{}
			}
		})
		select {
		case <-inside:
		case <-refused:
		}
	}
	before := s.deps.Metrics.inFlight.Load()
	for i := range 100 { // more than the places for device logins
		slow(fmt.Sprintf("198.18.%d.1", i))
	}
	require.Equal(t, before, s.deps.Metrics.inFlight.Load(), "a request whose body has not arrived is not in flight")
	require.Equal(t, http.StatusOK, poll("192.0.2.1", strings.NewReader(`{"device_code":"unknown"}`)))
	for range maxNetworkArriving {
		slow("203.0.113.1")
	}
	require.Equal(t, http.StatusServiceUnavailable, poll("203.0.113.1", strings.NewReader(`{"device_code":"unknown"}`)), "it has its share")
	require.Equal(t, http.StatusOK, poll("203.0.113.2", strings.NewReader(`{"device_code":"unknown"}`)))
	close(leave)
	sending.Wait()
	require.Equal(t, http.StatusOK, poll("203.0.113.1", strings.NewReader(`{"device_code":"unknown"}`)))
	require.Equal(t, before, s.deps.Metrics.inFlight.Load())

	capacity := lane.server.Load().capacity
	require.Zero(t, capacity.arriving.Taken()+capacity.devices.Taken())
	takePlaces(t, capacity.devices, "192.0.2.1", int(capacity.bound.Small()))
	require.Equal(t, http.StatusServiceUnavailable, poll("192.0.2.2", strings.NewReader(`{"device_code":"unknown"}`)), "the places for device logins")
}

// A webhook whose body has not arrived is not in flight either.
func TestArrivingWebhooksAreNotInFlight(t *testing.T) {
	s, endpoint := billingStack(t)
	u, err := url.Parse(s.url)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", u.Host)
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "POST "+hookOf(t, endpoint)+" HTTP/1.1\r\nHost: weir\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n")
	require.NoError(t, err)
	line, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "100 Continue", "the handler waits for the body")
	require.Zero(t, s.metrics.inFlight.Load())
}
