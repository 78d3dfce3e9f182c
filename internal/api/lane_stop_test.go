package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stoppedListener returns connections that read as in a process that was stopped for longer than
// their deadlines: the first read of each fails, although a request has arrived.
type stoppedListener struct {
	net.Listener
	arrived chan struct{} // closed when the request has arrived
}

func (l stoppedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return &stoppedConn{Conn: c, arrived: l.arrived}, err
}

type stoppedConn struct {
	net.Conn
	arrived chan struct{}
	late    atomic.Bool
}

func (c *stoppedConn) Read(b []byte) (int, error) {
	if !c.late.Swap(true) {
		<-c.arrived
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Read(b)
}

// A request that arrived before the deadline of its connection was seen is answered.
func TestLaneAnswersAfterAStop(t *testing.T) {
	s := newCheckStack(t)
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	arrived := make(chan struct{})
	listener := s.lane.Listen(stoppedListener{inner, arrived})
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	conn, err := net.Dial("tcp", inner.Addr().String())
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	body := `{"subject":"ada"}`
	_, err = io.WriteString(conn, "POST /v1/check HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+s.key+"\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n"+body)
	require.NoError(t, err)
	close(arrived)
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.NoError(t, answer.Body.Close())
}
