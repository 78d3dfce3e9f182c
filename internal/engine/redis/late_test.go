package redis

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process without a processor notices deadlines long after they passed. Redis is not silent then:
// the request is still sent, and an answer that has arrived is read. Before, both failed without
// asking the system, so a starved instance opened its circuit breaker, and its probes kept it open.
func TestLateProcessIsNoSilence(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = listener.Close() }()
	conns := &trackedConns{open: map[*trackedConn]struct{}{}}
	conn, err := conns.dialer(nil, time.Minute)(context.Background(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	server, err := listener.Accept()
	require.NoError(t, err)
	defer func() { _ = server.Close() }()

	past := time.Now().Add(-time.Hour)
	require.NoError(t, conn.SetWriteDeadline(past))
	_, err = conn.Write([]byte("PING"))
	require.NoError(t, err)
	got := make([]byte, 4)
	_, err = server.Read(got)
	require.NoError(t, err)
	_, err = server.Write([]byte("PONG")) // on loopback it has arrived when this returns
	require.NoError(t, err)
	require.NoError(t, conn.SetReadDeadline(past))
	_, err = conn.Read(got)
	require.NoError(t, err)
	require.Equal(t, "PONG", string(got))

	require.NoError(t, conn.SetReadDeadline(past))
	_, err = conn.Read(got)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a server that is silent is given up soon")
}

// A dial that timed out while the process hardly ran is repeated. Another failure is not.
func TestDialOfALateProcess(t *testing.T) {
	dials := 0
	fail := func(times int, err error) func() (net.Conn, error) {
		dials = 0
		return func() (net.Conn, error) {
			if dials++; dials <= times {
				return nil, err
			}
			return failedConn{}, nil
		}
	}
	timeout := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	_, err := dialAwake(time.Hour, fail(1, timeout))
	require.NoError(t, err)
	require.Equal(t, 2, dials)
	_, err = dialAwake(time.Hour, fail(100, timeout))
	require.Equal(t, timeout, err)
	require.Equal(t, maxPatience, dials)
	_, err = dialAwake(time.Hour, fail(100, errors.New("refused")))
	require.EqualError(t, err, "refused")
	require.Equal(t, 1, dials)
	const over = -time.Second // the process has run for longer than this, whenever it is
	_, err = dialAwake(over, fail(100, timeout))
	require.Equal(t, timeout, err)
	require.Equal(t, 1, dials, "the process ran, so the server was silent")
}
