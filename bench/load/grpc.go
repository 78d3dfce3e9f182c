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
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// grpcAsker asks over gRPC on a raw connection of HTTP/2 without TLS, one call at a time: the driver
// must be cheap. It sends the same bytes for the head of every call, and of an answer it reads the
// first field of the message and the status.
type grpcAsker struct {
	net.Conn
	out     bytes.Buffer
	framer  *http2.Framer
	decoder *hpack.Decoder
	stream  uint32
	unread  uint32 // bytes that the server must be told are read
	head    []byte // of a call, for path and key
	path    string
	code    string // of the trailer
}

// The numbers of a RateLimitResponse.
const (
	overallCode = 0x08 // the tag of the field
	codeOK      = 1
	codeOver    = 2
)

const (
	grpcPrefix    = 5 // bytes before a message
	windowRefresh = 16 << 10
)

func grpcAskers(ctx context.Context, t Target, n int, end time.Time) ([]asker, error) {
	var askers []asker
	for i := range n {
		a, err := dialGRPC(ctx, t.addr(i), end)
		if err != nil {
			for _, open := range askers {
				open.close()
			}
			return nil, err
		}
		askers = append(askers, a)
	}
	return askers, nil
}

func dialGRPC(ctx context.Context, addr string, end time.Time) (*grpcAsker, error) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	c, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	a := &grpcAsker{Conn: c, stream: 1}
	a.framer = http2.NewFramer(&a.out, bufio.NewReaderSize(c, readBuffer))
	a.framer.SetReuseFrames()
	a.decoder = hpack.NewDecoder(4096, func(f hpack.HeaderField) {
		if f.Name == "grpc-status" {
			a.code = f.Value
		}
	})
	a.out.WriteString(http2.ClientPreface)
	if err := errors.Join(c.SetDeadline(end), a.framer.WriteSettings(), a.flush()); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return a, nil
}

func (a *grpcAsker) flush() error {
	_, err := a.out.WriteTo(a.Conn)
	return err
}

// header is the head of a call. It names no entry of the connection's table of headers, so that it can
// be sent again and again.
func (a *grpcAsker) header(r *Request) []byte {
	if a.path == r.Path {
		return a.head
	}
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", r.Path}, {":authority", "localhost"},
		{"content-type", "application/grpc"}, {"te", "trailers"}, {"weir-key", r.Key},
	} {
		// A sensitive field is not put into the table.
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true}) // to memory
	}
	a.head, a.path = block.Bytes(), r.Path
	return a.head
}

func (a *grpcAsker) ask(r *Request) (answer, error) {
	prefix := [grpcPrefix]byte{}
	binary.BigEndian.PutUint32(prefix[1:], uint32(len(r.Body)))
	err := errors.Join(
		a.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: a.stream, BlockFragment: a.header(r), EndHeaders: true}),
		a.framer.WriteData(a.stream, true, append(prefix[:], r.Body...)),
		a.flush(),
	)
	if err != nil {
		return answer{}, err
	}
	got, err := a.receive()
	a.stream += 2
	return got, err
}

// receive reads frames to the end of the call.
func (a *grpcAsker) receive() (got answer, err error) {
	a.code = ""
	first := true
	for {
		frame, err := a.framer.ReadFrame()
		if err != nil {
			return got, err
		}
		switch f := frame.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				err = errors.Join(a.framer.WriteSettingsAck(), a.flush())
			}
		case *http2.PingFrame:
			if !f.IsAck() {
				err = errors.Join(a.framer.WritePing(true, f.Data), a.flush())
			}
		case *http2.DataFrame:
			if data := f.Data(); first && len(data) > grpcPrefix+1 && data[grpcPrefix] == overallCode {
				got.status = map[byte]int{codeOK: 200, codeOver: 429}[data[grpcPrefix+1]]
			}
			first = false
			if a.unread += f.Length; a.unread >= windowRefresh {
				err = a.framer.WriteWindowUpdate(0, a.unread) // with the next call
				a.unread = 0
			}
		case *http2.HeadersFrame:
			if !f.HeadersEnded() {
				return got, errors.New("load: headers of more than one frame")
			}
			if _, err := a.decoder.Write(f.HeaderBlockFragment()); err != nil {
				return got, err
			}
			if f.StreamEnded() {
				if a.code != "0" {
					got.status = 500
				}
				return got, nil
			}
		case *http2.RSTStreamFrame:
			return got, fmt.Errorf("load: the server reset the call: %v", f.ErrCode)
		case *http2.GoAwayFrame:
			return got, io.ErrUnexpectedEOF
		}
		if err != nil {
			return got, err
		}
	}
}

func (a *grpcAsker) close() { _ = a.Close() } // nothing is left to be lost
