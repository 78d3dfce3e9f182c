package load

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httputil"
	"strconv"
	"time"
)

// Protocol is the protocol between the driver and the server.
type Protocol int

const (
	HTTP1 Protocol = iota // plain HTTP/1.1
	TLS                   // HTTP/1.1 over TLS
	HTTP2                 // HTTP/2 over TLS
	GRPC                  // gRPC without TLS
)

// Target is a server, or several instances of one.
type Target struct {
	Addrs    []string // HOST:PORT of each instance; connections go to them in turn
	Protocol Protocol
	TLS      *tls.Config // trusts the server; TLS and HTTP2 only

	sockets bool // use a socket for a connection of HTTP/1.1
}

// answer is what the driver reads of a response.
type answer struct {
	status   int
	degraded bool
}

var degradedMark = []byte(`"degraded":true`)

// http1 is a keep-alive connection with one request at a time. One goroutine may send while another
// receives.
type http1 struct {
	net.Conn
	in     *bufio.Reader
	socket *socket // below Conn; or nil
	spare  []byte  // for a body that does not fit into in
	last   bool    // the server closes the connection after the response
}

const readBuffer = 64 << 10

// addr returns the address for the connection with this number.
func (t Target) addr(connection int) string { return t.Addrs[connection%len(t.Addrs)] }

// dial opens the connection with this number, with the end of the run as its deadline.
func dial(ctx context.Context, t Target, connection int, end time.Time) (*http1, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", t.addr(connection))
	if err != nil {
		return nil, err
	}
	if err := c.SetDeadline(end); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var own *socket
	if t.sockets {
		if own, err = newSocket(c, end); err != nil {
			return nil, err
		}
		c = own
	}
	if t.Protocol == TLS {
		config := t.TLS.Clone()
		config.NextProtos = []string{"http/1.1"}
		secure := tls.Client(c, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c = secure
	}
	return &http1{Conn: c, in: bufio.NewReaderSize(c, readBuffer), socket: own}, nil
}

func (c *http1) send(r *Request) error {
	_, err := c.Write(r.http1)
	return err
}

// receive reads one response.
func (c *http1) receive() (answer, error) {
	status, err := c.statusLine()
	if err != nil {
		return answer{}, err
	}
	length, chunked, err := c.header()
	if err != nil {
		return answer{}, err
	}
	a := answer{status: status}
	switch {
	case status == 204:
		return a, nil
	case length >= 0 && length <= c.in.Size():
		body, err := c.in.Peek(length)
		if err != nil {
			return answer{}, err
		}
		a.degraded = bytes.Contains(body, degradedMark)
		_, err = c.in.Discard(length)
		return a, err
	case length >= 0:
		c.spare = append(c.spare[:0], make([]byte, length)...)
		_, err = io.ReadFull(c.in, c.spare)
	case chunked:
		err = c.chunks()
	default:
		err = errors.New("load: a response without length")
	}
	a.degraded = bytes.Contains(c.spare, degradedMark)
	return a, err
}

// statusLine parses "HTTP/1.1 200 OK".
func (c *http1) statusLine() (int, error) {
	line, err := c.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, fmt.Errorf("load: not a response of HTTP/1.1: %q", line)
	}
	return strconv.Atoi(string(line[9:12]))
}

// header reads to the empty line. length is -1 without a Content-Length.
func (c *http1) header() (length int, chunked bool, err error) {
	length = -1
	for {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return length, chunked, nil
		}
		switch line[0] | 0x20 { // few headers begin with these letters
		case 'c':
			if value, ok := field(line, "content-length"); ok {
				if length, err = strconv.Atoi(string(value)); err != nil || length < 0 {
					return 0, false, fmt.Errorf("load: bad Content-Length %q", value)
				}
			} else if value, ok := field(line, "connection"); ok && bytes.EqualFold(value, []byte("close")) {
				c.last = true
			}
		case 't':
			if value, ok := field(line, "transfer-encoding"); ok {
				chunked = bytes.EqualFold(value, []byte("chunked"))
			}
		}
	}
}

// field returns the value of a header line, if it has this name in lower case.
func field(line []byte, name string) ([]byte, bool) {
	if len(line) <= len(name) || line[len(name)] != ':' || !bytes.EqualFold(line[:len(name)], []byte(name)) {
		return nil, false
	}
	return bytes.TrimSpace(line[len(name)+1:]), true
}

// chunks reads a chunked body into spare, with the empty line at its end.
func (c *http1) chunks() error {
	body := bytes.NewBuffer(c.spare[:0])
	if _, err := body.ReadFrom(httputil.NewChunkedReader(c.in)); err != nil {
		return err
	}
	c.spare = body.Bytes()
	_, err := c.in.ReadSlice('\n')
	return err
}
