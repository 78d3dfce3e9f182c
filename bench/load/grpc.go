package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// grpcConn is a raw HTTP/2 connection without TLS that several askers share, as in Envoy. It is
// cheap: it sends the same header bytes for every call, and of a response it reads only the first
// field of the message and the status.
type grpcConn struct {
	net.Conn
	mu      sync.Mutex // guards the fields below
	out     bytes.Buffer
	framer  *http2.Framer // only the reader reads from it
	stream  uint32
	head    []byte // of every call except the first; all calls have the same path and key
	path    string
	waiting map[uint32]*grpcAsker
	err     error // why the connection ended
}

// grpcAsker is an asker on one of the streams of a connection.
type grpcAsker struct {
	conn   *grpcConn
	answer chan answer // receives the response of the current call; closed when the connection ends
	got    answer      // what the reader has read of the response
}

// Numbers in a RateLimitResponse.
const (
	overallCode = 0x08 // the tag of the field
	codeOK      = 1
	codeOver    = 2
)

const (
	grpcPrefix    = 5 // bytes before a message
	windowRefresh = 16 << 10
)

// grpcAskers returns n askers. Each streamsPerConnection of them share a connection.
func grpcAskers(ctx context.Context, t Target, n int, end time.Time) ([]asker, error) {
	var askers []asker
	var conn *grpcConn
	for i := range n {
		if i%streamsPerConnection == 0 {
			var err error
			if conn, err = dialGRPC(ctx, t.addr(i/streamsPerConnection), end); err != nil {
				for _, open := range askers {
					open.close()
				}
				return nil, err
			}
		}
		askers = append(askers, &grpcAsker{conn: conn, answer: make(chan answer, 1)})
	}
	return askers, nil
}

func dialGRPC(ctx context.Context, addr string, end time.Time) (*grpcConn, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	socket, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &grpcConn{Conn: socket, stream: 1, waiting: map[uint32]*grpcAsker{}}
	c.framer = http2.NewFramer(&c.out, bufio.NewReaderSize(socket, readBuffer))
	c.framer.SetReuseFrames()
	c.out.WriteString(http2.ClientPreface)
	if err := errors.Join(socket.SetDeadline(end), c.framer.WriteSettings(), c.flush()); err != nil {
		return nil, errors.Join(err, socket.Close())
	}
	go c.read()
	return c, nil
}

func (c *grpcConn) flush() error {
	_, err := c.out.WriteTo(c.Conn)
	return err
}

// header returns the headers of a call. The first call of a connection adds its fields to the HPACK
// table, and later calls refer to them there, as clients do.
func (c *grpcConn) header(r *Request) []byte {
	if c.path == r.Path {
		return c.head
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	encode := func() []byte {
		block.Reset()
		for _, f := range [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", r.Path}, {":authority", "localhost"},
			{"content-type", "application/grpc"}, {"te", "trailers"}, {"weir-key", r.Key},
		} {
			_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // writes to memory
		}
		return bytes.Clone(block.Bytes())
	}
	first := encode()
	c.head, c.path = encode(), r.Path
	return first
}

func (a *grpcAsker) ask(r *Request) (answer, error) {
	if err := a.send(r); err != nil {
		return answer{}, err
	}
	got, ok := <-a.answer
	if !ok {
		return answer{}, a.conn.err
	}
	return got, nil
}

func (a *grpcAsker) send(r *Request) error {
	c := a.conn
	prefix := [grpcPrefix]byte{}
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(r.Body)))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	a.got = answer{}
	c.waiting[c.stream] = a
	err := errors.Join(
		c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: c.stream, BlockFragment: c.header(r), EndHeaders: true}),
		c.framer.WriteData(c.stream, true, append(prefix[:], r.Body...)),
		c.flush(),
	)
	c.stream += 2
	return err
}

// read reads frames until the connection ends.
func (c *grpcConn) read() {
	code := "" // of the trailers in progress
	decoder := hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			code = f.Value
		}
	})
	var unread uint32
	for {
		frame, err := c.framer.ReadFrame()
		if err == nil {
			code = ""
			c.mu.Lock()
			err = c.take(frame, decoder, &code, &unread)
			c.mu.Unlock()
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// take processes one frame. The caller holds the lock.
func (c *grpcConn) take(frame http2.Frame, decoder *hpack.Decoder, code *string, unread *uint32) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return errors.Join(c.framer.WriteSettingsAck(), c.flush())
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return errors.Join(c.framer.WritePing(true, f.Data), c.flush())
		}
	case *http2.DataFrame:
		if a := c.waiting[f.StreamID]; a != nil && a.got.status == 0 {
			if data := f.Data(); len(data) > grpcPrefix+1 && data[grpcPrefix] == overallCode {
				a.got.status = map[byte]int{codeOK: 200, codeOver: 429}[data[grpcPrefix+1]]
			}
		}
		if *unread += f.Length; *unread >= windowRefresh {
			n := *unread
			*unread = 0
			return errors.Join(c.framer.WriteWindowUpdate(0, n), c.flush())
		}
	case *http2.HeadersFrame:
		if !f.HeadersEnded() {
			return errors.New("load: headers of more than one frame")
		}
		if _, err := decoder.Write(f.HeaderBlockFragment()); err != nil {
			return err
		}
		if a := c.waiting[f.StreamID]; f.StreamEnded() && a != nil {
			if *code != "0" {
				a.got.status = 500
			}
			delete(c.waiting, f.StreamID)
			a.answer <- a.got
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("load: the server reset a call: %v", f.ErrCode)
	case *http2.GoAwayFrame:
		return io.ErrUnexpectedEOF
	}
	return nil
}

// end ends all current calls.
func (c *grpcConn) end(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for _, a := range c.waiting {
		close(a.answer)
	}
	clear(c.waiting)
}

func (a *grpcAsker) close() { _ = a.conn.Close() } // nothing can be lost any more
