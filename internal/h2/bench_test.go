package h2

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// BenchmarkCall measures a direct call with the answer of a check, 50 at once, over a connection
// whose windows are open.
func BenchmarkCall(b *testing.B) {
	block := AppendField(AppendStatus(nil, 200), "content-type", "application/json")
	body := []byte(long(300))
	config := Config{
		Limits: testLimits(), Direct: func(*Head) bool { return true },
		Call: func(s *Call) bool { s.AnswerHTTP(block, body); return true },
	}
	here, there := net.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		New(config).ServeConn(there, nil)
	}()
	b.Cleanup(func() {
		_ = here.Close()
		<-done
	})
	const atOnce = 50
	ends := make(chan struct{}, atOnce+1)
	go func() { // the client reads
		defer close(ends)
		framer := http2.NewFramer(io.Discard, bufio.NewReader(here))
		framer.SetReuseFrames()
		for {
			f, err := framer.ReadFrame()
			if err != nil {
				return
			}
			if h := f.Header(); h.Type == http2.FrameSettings && h.Flags&http2.FlagSettingsAck != 0 || h.Type == http2.FrameData && h.Flags&http2.FlagDataEndStream != 0 {
				ends <- struct{}{}
			}
		}
	}()
	var out bytes.Buffer
	framer := http2.NewFramer(&out, nil)
	send := func(answers int) {
		if _, err := here.Write(out.Bytes()); err != nil {
			b.Fatal(err)
		}
		out.Reset()
		for range answers {
			if _, ok := <-ends; !ok {
				b.Fatal("the connection has ended")
			}
		}
	}
	out.WriteString(http2.ClientPreface)
	_ = framer.WriteSettings()
	send(1)
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", callPath}, {":authority", "test"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1], Sensitive: true})
	}
	id := uint32(1)
	b.ReportAllocs()
	for left := b.N; left > 0; left -= atOnce {
		some := min(left, atOnce)
		_ = framer.WriteWindowUpdate(0, uint32(some*len(body)))
		for range some {
			_ = framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndHeaders: true, EndStream: true})
			id += 2
		}
		send(some)
	}
}
