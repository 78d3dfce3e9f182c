package weir

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

const benchAnswer = `{"allowed":true,"subject":"user_42","resource":"orders:create","cost":1,"plan":"free","rule":"api-requests","limit":100,"remaining":99,"retry_after_ms":0,"reset_after_ms":600,"rules":[{"rule":"api-requests","algorithm":"token_bucket","mode":"enforce","allowed":true,"source":"plan:free","limit":100,"burst":100,"window_ms":60000,"remaining":99,"retry_after_ms":0,"reset_after_ms":600}],"degraded":false}`

const benchHead = "HTTP/1.1 200 OK\r\nCache-Control: no-store\r\nContent-Type: application/json\r\nRateLimit: \"api-requests\";r=99;t=1\r\n" +
	"RateLimit-Policy: \"api-requests\";q=100;w=60\r\nWeir-Decision: allow\r\nX-RateLimit-Limit: 100\r\nX-RateLimit-Remaining: 99\r\nX-RateLimit-Reset: 1800000001\r\n"

// answeringServer allows every check and counts requests and checks.
func answeringServer(t testing.TB, requests, checks *atomic.Int64) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	serve := func(conn net.Conn) {
		defer all.Done()
		reader := bufio.NewReader(conn)
		for {
			r, err := http.ReadRequest(reader)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			requests.Add(1)
			answer, n := answerTo(r.URL.Path, body)
			checks.Add(n)
			if _, err := fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", benchHead, len(answer), answer); err != nil {
				return
			}
		}
	}
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			all.Add(1)
			go serve(conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	return listener.Addr().String()
}

func answerTo(path string, body []byte) (answer string, checks int64) {
	of := func(subject string) string {
		return strings.Replace(benchAnswer, `"user_42"`, fmt.Sprintf("%q", subject), 1)
	}
	var asked struct {
		Subject string
		Checks  []struct{ Subject string }
	}
	if json.NewDecoder(bytes.NewReader(body)).Decode(&asked) != nil {
		return "", 0
	}
	if path == "/v1/check" {
		return of(asked.Subject), 1
	}
	results := make([]string, len(asked.Checks))
	for i := range asked.Checks {
		results[i] = of(asked.Checks[i].Subject)
	}
	return `{"results":[` + strings.Join(results, ",") + `]}`, int64(len(results))
}
