package main

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The kernel holds little for a client that does not read. By default, it holds some megabytes.
func TestUnsentIsLimited(t *testing.T) {
	t.Parallel()
	listener, err := listenTCP("WEIR_HTTP_ADDR", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.(*net.TCPConn).SetReadBuffer(4<<10)) // so that what was sent counts little
	conn, err := listener.Accept()
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
	written, err := conn.Write(make([]byte, 16<<20))
	require.True(t, errors.Is(err, os.ErrDeadlineExceeded), "%v", err)
	require.Less(t, written, 1<<20)
}
