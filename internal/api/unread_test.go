package api

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// unreadable are requests that net/http cannot parse. TARGET is the path and HEADERS are further
// lines.
var unreadable = map[string]struct {
	raw    string
	status int
	code   string
}{
	"path":              {"POST TARGET/%zz HTTP/1.1\r\nHost: weir\r\n\r\n", 400, codeMalformedRequest},
	"path with control": {"POST TARGET?\x01 HTTP/1.1\r\nHost: weir\r\n\r\n", 400, codeMalformedRequest},
	"header":            {"POST TARGET HTTP/1.1\r\nHost: weir\r\nno colon\r\n\r\n", 400, codeMalformedRequest},
	"name of a header":  {"POST TARGET HTTP/1.1\r\nHost: weir\r\nX A: b\r\n\r\n", 400, codeMalformedRequest},
	"no host":           {"POST TARGET HTTP/1.1\r\n\r\n", 400, codeMalformedRequest},
	"two hosts":         {"POST TARGET HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, codeMalformedRequest},
	"two lengths":       {"POST TARGET HTTP/1.1\r\nHost: weir\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, codeMalformedRequest},
	"length and coding": {"POST TARGET HTTP/1.1\r\nHost: weir\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: weir\r\n\r\n", 400, codeMalformedRequest},
	"coding and length": {"POST TARGET HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: weir\r\ncontent-length:\r\n 5\r\n\r\n0\r\n\r\n", 400, codeMalformedRequest},
	"coding in 1.0":     {"POST TARGET HTTP/1.0\r\nHost: weir\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, codeMalformedRequest},
	"transfer coding":   {"POST TARGET HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: gzip\r\n\r\n", 501, codeMalformedRequest},
	"version":           {"POST TARGET HTTP/3.1\r\nHost: weir\r\n\r\n", 505, codeMalformedRequest},
	"expectation":       {"POST TARGET HTTP/1.1\r\nHost: weir\r\nExpect: much\r\n\r\n", 417, codeMalformedRequest},
	"long header":       {"POST TARGET HTTP/1.1\r\nHost: weir\r\nX-A: " + strings.Repeat("a", 30<<10) + "\r\n\r\n", 431, codeHeadersTooLarge},
	"many headers":      {"POST TARGET HTTP/1.1\r\nHost: weir\r\n" + strings.Repeat("X-A: b\r\n", 4<<10) + "\r\n", 431, codeHeadersTooLarge},
	"many lines":        {"POST TARGET HTTP/1.1\r\nHost: weir\r\n" + strings.Repeat("A:\r\n", maxHeadLines) + "\r\n", 431, codeHeadersTooLarge},
	"long path":         {"POST TARGET?" + strings.Repeat("a", 30<<10) + " HTTP/1.1\r\nHost: weir\r\n\r\n", 431, codeHeadersTooLarge},
}

// A request that net/http refuses is answered as usual for invalid requests. A gateway's customer
// may have caused it, so for a gateway it is a denial.
func TestUnreadableRequests(t *testing.T) { overBoth(t, testUnreadableRequests) }

func testUnreadableRequests(t *testing.T, s *checkStack) {
	const good = `{"subject":"b","resource":"bulk"}`
	for name, u := range unreadable {
		t.Run(name, func(t *testing.T) {
			for _, target := range []string{"/v1/check", "/v1/authorize/edge", "http://weir/v1/authorize/edge", "/v1/authorize", "/v1/authorizes"} {
				for _, before := range []string{"", s.head("X-Unknown: 1", "Content-Length: "+itoa(int64(len(good)))) + good} {
					for s.secure != nil && len(s.secure.handed) > 0 {
						<-s.secure.handed // it has room for fewer connections than this test makes
					}
					c := s.dial()
					c.t = t
					if before != "" { // a request that leaves the lane
						c.send(before)
						c.receive().decision(200)
					}
					c.send(strings.Replace(u.raw, "TARGET", target, 1))
					a := c.receive()
					require.Equal(t, "close", a.header.Get("Connection"))
					require.NotEmpty(t, a.header.Get("Date"))
					a.checkDecisionHeader()
					if strings.HasSuffix(target, "check") || strings.HasSuffix(target, "authorizes") {
						p := a.problem(u.status, u.code)
						require.Equal(t, decisionNone, a.header.Get(decisionHeader))
						require.NotEmpty(t, p.Detail)
					} else {
						d := a.decision(http.StatusTooManyRequests)
						require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
						require.EqualValues(t, requestInvalid, d.Error.Code)
						require.Empty(t, a.header.Values("Retry-After"))
					}
					c.closed()
				}
			}
		})
	}
}

// The answer of a handler is never confused with one of net/http.
func TestAnswersOfHandlersStay(t *testing.T) {
	for _, answer := range []string{
		"", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nDate: x\r\nConnection: close\r\n\r\n",
		"HTTP/1.1 400 Bad Request\r\nCache-Control: no-store\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n",
		"x HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n",
	} {
		_, ok := unreadLine([]byte(answer))
		require.False(t, ok, answer)
	}
}
