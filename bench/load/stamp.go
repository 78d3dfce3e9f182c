package load

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stamped is a TCP connection that knows when the last data that was read from it arrived. The
// kernel stamps a packet on loopback while the server sends it, so the time does not depend on when
// the driver reads.
type stamped struct {
	net.Conn
	raw     syscall.RawConn
	arrived int64 // Unix time in nanoseconds; 0 if the kernel did not stamp the data

	// The arguments and results of receive are here because anything allocated for each read would
	// become garbage, and a garbage collection makes the driver late.
	try     func(fd uintptr) bool // receive
	into    []byte
	n       int
	err     error
	message unix.Msghdr
	part    unix.Iovec
	control [64]byte
}

func newStamped(c net.Conn) (*stamped, error) {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.New("load: not a TCP connection")
	}
	raw, err := t.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failure error
	err = raw.Control(func(fd uintptr) {
		failure = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1))
	})
	s := &stamped{Conn: c, raw: raw}
	s.try = s.receive
	return s, errors.Join(err, failure)
}

// Read is Read of net.Conn. If the data are of several packets, arrived is the time of the last.
func (s *stamped) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	s.into, s.n, s.err = b, 0, nil
	err := s.raw.Read(s.try)
	s.into, s.part.Base = nil, nil
	switch {
	case err != nil:
		return 0, err
	case s.err != nil:
		return 0, os.NewSyscallError("recvmsg", s.err)
	case s.n == 0:
		return 0, io.EOF
	}
	return s.n, nil
}

// receive returns false if there are no data yet.
func (s *stamped) receive(fd uintptr) bool {
	s.part.Base = &s.into[0]
	s.part.SetLen(len(s.into))
	s.message = unix.Msghdr{Iov: &s.part, Control: &s.control[0]}
	s.message.SetIovlen(1)
	s.message.SetControllen(len(s.control))
	for {
		// unix.Recvmsg would allocate the address of the sender.
		n, _, failure := unix.Syscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&s.message)), 0)
		switch failure {
		case 0:
			s.n, s.arrived = int(n), stampOf(s.control[:s.message.Controllen])
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.err = failure
			return true
		}
	}
}

// stampOf returns the time in control messages, or 0.
func stampOf(control []byte) int64 {
	for len(control) > 0 {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return 0
		}
		if header.Level == unix.SOL_SOCKET && header.Type == unix.SO_TIMESTAMPNS_NEW && len(data) >= 16 {
			return int64(binary.NativeEndian.Uint64(data))*int64(time.Second) + int64(binary.NativeEndian.Uint64(data[8:]))
		}
		control = rest
	}
	return 0
}

// realtime returns the time of the clock that stamps packets.
func realtime() int64 { return time.Now().UnixNano() }

// awaitStamps waits until the kernel stamps packets: it begins some time after the first connection
// asked for it. On a kernel that never does, it gives up after a second.
func awaitStamps(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	near, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		return err
	}
	defer far.Close()
	s, err := newStamped(far)
	if err != nil {
		return err
	}
	end := time.Now().Add(time.Second)
	if err := s.SetDeadline(end); err != nil {
		return err
	}
	for b := make([]byte, 1); s.arrived == 0 && time.Now().Before(end) && ctx.Err() == nil; {
		if _, err := near.Write(b); err != nil {
			return err
		}
		if _, err := s.Read(b); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return ctx.Err()
}
