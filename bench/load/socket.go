package load

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a TCP connection outside Go's network poller, for an open loop: one thread waits for
// all sockets and uses them itself, so that no other thread of the driver wakes up for a response.
// The kernel stamps what arrives. On loopback it does so while the server sends, so the stamp does
// not depend on when the driver reads.
type socket struct {
	net.Conn       // closed; it has the addresses
	fd       int   // not blocking
	end      int64 // of waits in Read and Write: realtime
	arrived  int64 // realtime of the last packet of which Read returned data; 0 without a stamp
	message  unix.Msghdr
	part     unix.Iovec
	control  [64]byte
	closing  sync.Once
}

// newSocket takes a connection over.
func newSocket(c net.Conn, end time.Time) (*socket, error) {
	defer c.Close() // fd is another descriptor of the same connection
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.New("load: not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: c, fd: -1, end: end.UnixNano()}
	var failure error
	err = raw.Control(func(fd uintptr) {
		if failure = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_TIMESTAMPNS_NEW, 1); failure == nil {
			s.fd, failure = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err := errors.Join(err, os.NewSyscallError("setsockopt", failure)); err != nil {
		return nil, err
	}
	return s, nil
}

// Read waits for data. If they are of several packets, arrived is the time of the last.
func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	s.part.Base = &b[0]
	s.part.SetLen(len(b))
	defer func() { s.part.Base = nil }()
	for {
		s.message = unix.Msghdr{Iov: &s.part, Control: &s.control[0]}
		s.message.SetIovlen(1)
		s.message.SetControllen(len(s.control))
		// unix.Recvmsg would allocate the address of the sender for each call, and a garbage
		// collection makes the driver late.
		n, _, failure := unix.Syscall(unix.SYS_RECVMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.message)), 0)
		switch {
		case failure == 0 && n == 0:
			return 0, io.EOF
		case failure == 0:
			s.arrived = stampOf(s.control[:s.message.Controllen])
			return int(n), nil
		}
		if err := s.wait(unix.POLLIN, failure); err != nil {
			return 0, os.NewSyscallError("recvmsg", err)
		}
	}
}

func (s *socket) Write(b []byte) (int, error) {
	for sent := 0; ; {
		n, err := unix.Write(s.fd, b[sent:])
		if sent += max(n, 0); sent == len(b) {
			return sent, nil
		}
		if err == nil {
			continue
		}
		if err := s.wait(unix.POLLOUT, err); err != nil {
			return sent, os.NewSyscallError("write", err)
		}
	}
}

// wait waits after a failure that only means to try again, and returns any other one.
func (s *socket) wait(events int16, failure error) error {
	switch failure {
	case unix.EINTR:
		return nil
	case unix.EAGAIN:
	default:
		return failure
	}
	left := time.Duration(s.end - realtime())
	if left <= 0 {
		return os.ErrDeadlineExceeded
	}
	_, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: events}}, int(left.Milliseconds())+1)
	if err == unix.EINTR {
		return nil
	}
	return err
}

// shutdown ends the connection, and with it every wait. Close must follow.
func (s *socket) shutdown() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) }

func (s *socket) Close() error {
	s.closing.Do(func() {
		s.shutdown()
		_ = unix.Close(s.fd) // nothing can be lost: the kernel has what was written
	})
	return nil
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

// awaitStamps waits until the kernel stamps packets: it begins some time after the first socket
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
	end := time.Now().Add(time.Second)
	s, err := newSocket(far, end)
	if err != nil {
		return err
	}
	defer s.Close()
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

// poller waits for sockets.
type poller struct {
	fd     int
	events [8]unix.EpollEvent // few, because a request may become due while these are read
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	return &poller{fd: fd}, os.NewSyscallError("epoll_create1", err)
}

func (p *poller) close() { _ = unix.Close(p.fd) }

// add adds the socket with this number. wait returns it once for each arrival, so that data without
// a request, which TLS has, are not returned again and again.
func (p *poller) add(s *socket, number int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, Fd: int32(number)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, s.fd, &event))
}

// wait waits for sockets that have something to read, at most until then. Fd is their number.
func (p *poller) wait(until time.Time) ([]unix.EpollEvent, error) {
	timeout := unix.NsecToTimespec(max(0, int64(time.Until(until))))
	n, _, failure := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&p.events[0])),
		uintptr(len(p.events)), uintptr(unsafe.Pointer(&timeout)), 0, 0)
	switch failure {
	case 0:
		return p.events[:n], nil
	case unix.EINTR:
		return nil, nil
	}
	return nil, os.NewSyscallError("epoll_pwait2", failure)
}
