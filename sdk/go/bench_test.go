package weir

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// A cannedTransport answers immediately, so that only the client is measured.
type cannedTransport struct{ header http.Header }

func (c *cannedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	return &http.Response{StatusCode: 200, Header: c.header, Body: io.NopCloser(strings.NewReader(benchAnswer)), ContentLength: int64(len(benchAnswer))}, nil
}

func benchClient(b *testing.B, options ...Option) *Client {
	h := http.Header{}
	for line := range strings.SplitSeq(benchHead, "\r\n") {
		if name, value, ok := strings.Cut(line, ": "); ok {
			h.Set(name, value)
		}
	}
	client, err := New("http://127.0.0.1:1", "weir_test_key", append([]Option{WithTransport(&cannedTransport{h})}, options...)...)
	if err != nil {
		b.Fatal(err)
	}
	return client
}

var benchCheck = Check{Subject: "user_42", Resource: "orders:create"}

// BenchmarkClient measures what the client adds to the HTTP transport: encoding, breaker, memory,
// decoding.
func BenchmarkClient(b *testing.B) {
	for name, options := range map[string][]Option{"plain": nil, "local": {WithOnFailure(Local)}, "batching": {WithBatching()}} {
		b.Run(name, func(b *testing.B) {
			client := benchClient(b, options...)
			measure(b, func() {
				if d, err := client.Check(context.Background(), benchCheck); err != nil || d.NoDecision != nil {
					b.Fatal(d, err)
				}
			})
		})
	}
}

// BenchmarkRemembered measures a denial from memory.
func BenchmarkRemembered(b *testing.B) {
	client := benchClient(b)
	q, _ := ask(benchCheck, false)
	denial := Decision{Source: SourceServer, Denial: &Denial{}}
	client.memory.remember(&q, &denial, time.Now().Add(time.Hour))
	b.ReportAllocs()
	for b.Loop() {
		if d, err := client.Check(context.Background(), benchCheck); err != nil || d.Source != SourceMemory {
			b.Fatal(d, err)
		}
	}
}

// BenchmarkLoopback compares a check over loopback with a bare POST that ignores the answer, both
// in this process with the server.
func BenchmarkLoopback(b *testing.B) {
	var requests, checks atomic.Int64
	url := "http://" + answeringServer(b, &requests, &checks)
	b.Run("check", func(b *testing.B) {
		client, err := New(url, "weir_test_key", WithTimeout(patience))
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		measure(b, func() {
			if d, err := client.Check(context.Background(), benchCheck); err != nil || d.NoDecision != nil {
				b.Fatal(d, err)
			}
		})
	})
	b.Run("bare", func(b *testing.B) {
		s := defaults()
		transport := newTransport(&s)
		defer transport.CloseIdleConnections()
		body := []byte(`{"subject":"user_42","resource":"orders:create"}`)
		measure(b, func() {
			r, err := http.NewRequest(http.MethodPost, url+"/v1/check", bytes.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer weir_test_key")
			response, err := transport.RoundTrip(r)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
		})
	})
}

// measure runs a call and reports the CPU time of this process in addition to the elapsed time.
func measure(b *testing.B, call func()) {
	call()
	b.ReportAllocs()
	before := cpu()
	b.ResetTimer()
	for range b.N {
		call()
	}
	b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
}

func cpu() int64 {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return usage.Utime.Nano() + usage.Stime.Nano()
}
