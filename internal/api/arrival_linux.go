//go:build linux && (amd64 || arm64)

package api

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// stampedConn is a TCP connection that knows when the bytes of its last Read had arrived. Linux
// notes the time at which it received a packet, and returns it with the bytes. Between both, a
// request waits in the socket's buffer until Go's runtime looks at the socket, and then for a
// processor.
type stampedConn struct {
	*net.TCPConn
	raw     syscall.RawConn
	read    func(fd uintptr) (done bool) // made once, so that a Read allocates nothing
	buf     []byte                       // of the Read in progress
	n       int
	err     error
	control [controlBytes]byte
	arrived time.Time // zero: not known
}

// The control message of a time: its length, its level, its type and a timespec.
const (
	controlBytes = 32
	levelAt      = 8
	typeAt       = 12
	secondsAt    = 16
	nanosAt      = 24
)

// stamped returns conn as a connection that knows arrival times, and nil if it cannot know them.
func stamped(conn net.Conn) *stampedConn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
	})
	if err != nil || set != nil {
		return nil
	}
	c := &stampedConn{TCPConn: tcp, raw: raw}
	c.read = c.receive
	return c
}

// Read implements net.Conn.
func (c *stampedConn) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	c.buf = b
	err := c.raw.Read(c.read)
	c.buf = nil
	switch {
	case err != nil:
		return 0, err
	case c.err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError("recvmsg", c.err)}
	case c.n == 0:
		return 0, io.EOF
	}
	return c.n, nil
}

// receive reads from the socket, or returns false if there is nothing yet.
func (c *stampedConn) receive(fd uintptr) (done bool) {
	for {
		n, control, _, _, err := syscall.Recvmsg(int(fd), c.buf, c.control[:], 0)
		switch err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			return false
		}
		c.n, c.err = max(n, 0), err
		c.arrived = stampOf(c.control[:max(control, 0)])
		return true
	}
}

// stampOf returns the time in a control message.
func stampOf(control []byte) time.Time {
	if len(control) < controlBytes || binary.NativeEndian.Uint32(control[levelAt:]) != syscall.SOL_SOCKET ||
		binary.NativeEndian.Uint32(control[typeAt:]) != syscall.SCM_TIMESTAMPNS {
		return time.Time{} // a packet that arrived before the option was set
	}
	return time.Unix(int64(binary.NativeEndian.Uint64(control[secondsAt:])), int64(binary.NativeEndian.Uint64(control[nanosAt:]))) // #nosec G115 -- a time
}

// unstamped returns the connection for net/http, which does not need the times.
func (c *laneConn) unstamped() net.Conn {
	if c.stamp != nil && c.Conn == net.Conn(c.stamp) {
		return c.stamp.TCPConn
	}
	return c.Conn
}
