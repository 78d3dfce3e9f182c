//go:build linux && (amd64 || arm64)

package api

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"weir/internal/overload"
)

// pair returns both ends of a TCP connection, the second of which knows arrival times.
func pair(t *testing.T) (client net.Conn, server *stampedConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	client, err = net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	accepted, err := listener.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = accepted.Close() })
	server = stamped(accepted)
	require.NotNil(t, server)
	return client, server
}

// A read returns the bytes, and when they arrived: not when they were read.
func TestStampedConn(t *testing.T) {
	client, server := pair(t)
	buf := make([]byte, 16)
	var last time.Time
	for range 5 {
		sent := time.Now()
		_, err := client.Write([]byte("hello"))
		require.NoError(t, err)
		received := time.Now() // on loopback it has arrived when Write returns
		for time.Since(received) < 2*time.Millisecond {
			time.Sleep(time.Millisecond)
		}
		n, err := server.Read(buf)
		require.NoError(t, err)
		require.Equal(t, "hello", string(buf[:n]))
		if last = server.arrived; last.IsZero() {
			continue // the first packets after the option was set may have no time
		}
		require.WithinRange(t, last, sent.Add(-time.Millisecond), received.Add(time.Millisecond))
	}
	require.False(t, last.IsZero())

	one := []byte("x")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		_, _ = client.Write(one)
		_, _ = server.Read(buf)
	}))
	n, err := server.Read(nil)
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, server.SetReadDeadline(longAgo))
	_, err = server.Read(buf)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout())
	require.NoError(t, server.SetReadDeadline(time.Time{}))
	require.NoError(t, client.(*net.TCPConn).CloseWrite())
	_, err = server.Read(buf)
	require.Equal(t, io.EOF, err)
	require.NoError(t, client.(*net.TCPConn).SetLinger(0)) // Close resets it
	require.NoError(t, server.Close())
	_, err = server.Read(buf)
	require.ErrorIs(t, err, net.ErrClosed)
	require.Nil(t, stamped(failing{}), "only TCP has times")
}

type failing struct{ net.Conn }

// The wait of a request begins when it arrived, or when the pause of its connection was over. Its
// age begins when it arrived.
func TestWaitOfARequest(t *testing.T) {
	_, server := pair(t)
	c := &laneConn{stamp: server, startedAt: time.Now()}
	waited, age := c.waited()
	require.Zero(t, waited)
	require.Zero(t, age)
	server.arrived = c.startedAt.Add(-time.Minute)
	waited, age = c.waited()
	require.Equal(t, time.Minute, waited)
	require.Equal(t, time.Minute, age)
	c.resumed = c.startedAt.Add(-time.Second)
	waited, age = c.waited()
	require.Equal(t, time.Second, waited)
	require.Equal(t, time.Minute, age)
}

// While requests are refused, the lane refuses one that is old before it looks at its key. Here it
// was sent during the pause of its connection.
func TestLaneRefusesOldRequests(t *testing.T) {
	s := newCheckStack(t)
	bound := overload.New(DefaultMaxInFlight, 1)
	for range 10 {
		bound.Adjust(overload.Signals{Runnable: time.Second, Refused: 1_000_000, Unread: time.Second, Waiting: 1000})
	}
	require.Equal(t, time.Second, bound.Pause())
	s.deps.Metrics = NewMetrics(prometheusRegistry())
	s.serve(Config{Headers: bothStyles, Bound: bound}, s.deps)
	free := s.crowd()
	c := s.dial()
	c.send(s.laneRequest(`{"subject":"old"}`))
	c.receive().problem(503, codeOverloaded)
	free()
	before := s.ordinary.Load()
	c.send(strings.Replace(s.laneRequest(`{"subject":"old"}`), s.key, "nonsense", 1))
	c.receive().problem(503, codeOverloaded)
	require.EqualValues(t, 1, testutil.ToFloat64(s.deps.Metrics.shedLate))
	for range 100 {
		bound.Adjust(overload.Signals{InFlight: 1})
	}
	c.send(s.laneRequest(`{"subject":"old"}`))
	c.receive().decision(200)
	require.Equal(t, before, s.ordinary.Load(), "the connection stays on the lane")
	require.Equal(t, int64(perSubject-1), s.remaining("old", "default"), "refused requests count nothing")
}
