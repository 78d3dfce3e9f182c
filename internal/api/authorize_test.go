package api

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
)

// ask returns a request to /v1/authorize in the lane's form.
func (s *checkStack) ask(method string, lines ...string) string {
	return method + " /v1/authorize HTTP/1.1\r\nHost: weir\r\nWeir-Key: " + s.key + "\r\n" + strings.Join(append(lines, "", ""), "\r\n")
}

// authorize sends a request to /v1/authorize on both transports, and returns the answer, which must
// be the same. If lines contain SUBJECT, each transport uses another subject.
func (s *checkStack) authorize(method string, lines ...string) answer {
	s.t.Helper()
	var answers [2]answer
	for i, transport := range []string{"lane", "http"} {
		own := make([]string, 0, len(lines)+2)
		for _, line := range lines {
			own = append(own, strings.ReplaceAll(line, "SUBJECT", transport))
		}
		own = append(own, "X-Request-Id: same", map[string]string{"lane": "X-A: b", "http": "Te: trailers"}[transport])
		before := s.ordinary.Load()
		c := s.dial()
		c.send(s.ask(method, own...))
		c.method = method
		answers[i] = c.receive()
		answers[i].checkDecisionHeader()
		s.contract.checkContract(httptest.NewRequest(method, authorizePath, nil), answers[i])
		if transport == "http" || answers[i].header.Get(decisionHeader) == decisionNone {
			require.Equal(s.t, before+1, s.ordinary.Load(), "net/http answered")
		}
		answers[i].header.Del("Date")
		answers[i].body = bytes.ReplaceAll(answers[i].body, []byte(`"subject":"`+transport+`"`), []byte(`"subject":"SUBJECT"`))
	}
	require.Equal(s.t, answers[1].status, answers[0].status)
	require.Equal(s.t, withoutTimes(answers[1]), withoutTimes(answers[0]))
	return answers[0]
}

// withoutTimes returns the text of an answer with every number replaced by 0, because time passes
// between two answers.
func withoutTimes(a answer) string {
	var b strings.Builder
	_ = a.header.Write(&b)
	b.Write(a.body)
	return numbers.ReplaceAllString(b.String(), "0")
}

var numbers = regexp.MustCompile(`[0-9]+`)

func TestAuthorize(t *testing.T) { overBoth(t, testAuthorize) }

func testAuthorize(t *testing.T, s *checkStack) {
	// An allowed request has only headers.
	before := s.ordinary.Load()
	c := s.dial()
	c.send(s.ask("GET", "Weir-Subject: user_42", "Cookie: a=b; c=d", "User-Agent: m\xc3\xbcnchen", "Authorization: Bearer customer's"))
	a := c.receive()
	a.checkDecisionHeader()
	require.Equal(t, http.StatusNoContent, a.status)
	require.Empty(t, a.body)
	require.Equal(t, decisionAllow, a.header.Get(decisionHeader))
	require.Equal(t, "4", a.header.Get("X-RateLimit-Remaining"))
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Empty(t, a.header.Get("Content-Type"))
	require.Equal(t, before, s.ordinary.Load(), "the lane answered")
	require.EqualValues(t, 4, s.remaining("user_42", "default"))

	// Every method, and every header.
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "PURGE", "brew"} {
		a := s.authorize(method, "Weir-Subject: SUBJECT", "Weir-Resource: bulk")
		require.Equal(t, http.StatusNoContent, a.status, "%s: %s", method, a.body)
	}
	require.EqualValues(t, 1_000_000-11, s.remaining("http", "bulk"))
	a = s.authorize("GET", "Weir-Subject: SUBJECT", "weir-resource: ip", "WEIR-ATTRIBUTE-IP: 203.0.113.7", "Weir-Cost: 0", "Weir-Plan: pro")
	require.Equal(t, `"by-ip";r=3`, a.header.Get("RateLimit"))
	s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Plan: pro", "Weir-Cost: 50")
	a = s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Plan: pro", "Weir-Cost: 50")
	d := a.decision(429)
	require.Equal(t, "SUBJECT", d.Subject)
	require.Equal(t, "pro", *d.Plan)
	require.NotEmpty(t, a.header.Get("Retry-After"))
	s.authorize("GET", "Weir-Subject: SUBJECT", "Weir-Plan: pro", "Weir-Cost: 50", "Weir-Denied-Status: 403").decision(403)
	s.authorize("GET", "Weir-Subject: blocked", "Weir-Denied-Status: 429").decision(429)
	a = s.authorize("HEAD", "Weir-Subject: blocked")
	require.Equal(t, 429, a.status)
	require.Empty(t, a.body)

	// Percent-encoding is decoded only if the gateway requests it, and only once.
	for value, subject := range map[string]string{"%41": "%41", "a+b": "a+b", "d\xc3\xa9j\xc3\xa0": "déjà", `x","plan":"pro`: `x","plan":"pro`} {
		a := s.authorize("GET", "Weir-Subject: "+value, "Weir-Resource: costly", "Weir-Cost: 11")
		require.Equal(t, subject, a.decision(429).Subject)
	}
	for value, subject := range map[string]string{"%41": "A", "%2541": "%41", "a+b": "a+b", "%64%C3%A9": "dé", "x": "x"} {
		a := s.authorize("GET", "Weir-Encoding: percent", "Weir-Subject: "+value, "Weir-Resource: co%73tly", "Weir-Cost: 11")
		require.Equal(t, subject, a.decision(429).Subject)
	}
	// The query is the customer's, and is ignored.
	c = s.dial()
	c.send(strings.Replace(s.ask("GET", "Weir-Subject: query", "Weir-Resource: bulk"), "/v1/authorize ", "/v1/authorize?subject=x&a=%zz ", 1))
	require.Equal(t, http.StatusNoContent, c.receive().status)
	require.EqualValues(t, 1_000_000-1, s.remaining("query", "bulk"))
}

// A customer cannot switch the limiter off: a missing or invalid subject is denied.
func TestAuthorizeUnusableSubjects(t *testing.T) {
	s := newCheckStack(t)
	long := strings.Repeat("a", limit.MaxNameBytes+1)
	for name, c := range map[string]struct {
		lines []string
		code  check.Code
	}{
		"no subject":                {nil, subjectMissing},
		"an empty subject":          {[]string{"Weir-Subject:"}, subjectMissing},
		"two subjects":              {[]string{"Weir-Subject: a", "Weir-Subject: b"}, subjectInvalid},
		"a long subject":            {[]string{"Weir-Subject: " + long}, subjectInvalid},
		"no UTF-8":                  {[]string{"Weir-Subject: \xff\xfe"}, subjectInvalid},
		"a control character":       {[]string{"Weir-Subject: \xc2\x85"}, subjectInvalid},
		"an encoded control":        {[]string{"Weir-Subject: a%00", "Weir-Encoding: percent"}, subjectInvalid},
		"a cut encoding":            {[]string{"Weir-Subject: a%4", "Weir-Encoding: percent"}, subjectInvalid},
		"no encoding":               {[]string{"Weir-Subject: a%zz", "Weir-Encoding: percent"}, subjectInvalid},
		"an overlong encoding":      {[]string{"Weir-Subject: %c0%ae", "Weir-Encoding: percent"}, subjectInvalid},
		"a long resource":           {[]string{"Weir-Subject: a", "Weir-Resource: " + long}, resourceInvalid},
		"two resources":             {[]string{"Weir-Subject: a", "Weir-Resource: b", "Weir-Resource: c"}, resourceInvalid},
		"a long attribute":          {[]string{"Weir-Subject: a", "Weir-Attribute-Ip: " + long}, attributeInvalid},
		"an attribute twice":        {[]string{"Weir-Subject: a", "Weir-Attribute-Ip: 1", "Weir-Attribute-ip: 2"}, attributeInvalid},
		"the attribute subject":     {[]string{"Weir-Subject: a", "Weir-Attribute-Subject: b"}, attributeInvalid},
		"seventeen attributes":      {append(attributeLines(17), "Weir-Subject: a"), attributeInvalid},
		"a short and a long header": {[]string{"Weir-Subject: " + long, "Weir-Denied-Status: 403"}, subjectInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(outer *testing.T) { s.t = outer }(s.t)
			s.t = t
			a := s.authorize("GET", c.lines...)
			status := 429
			if strings.Contains(strings.Join(c.lines, ""), "403") {
				status = 403
			}
			d := a.decision(status)
			require.Equal(t, string(c.code), d.Error.Code)
			require.False(t, d.Allowed)
			require.Empty(t, d.Subject)
			require.Empty(t, d.Rules)
			require.Empty(t, a.header.Get("Retry-After"), "no wait helps")
			require.Equal(t, decisionDeny, a.header.Get(decisionHeader))
		})
	}
	s.untouched("a")
	require.Equal(t, http.StatusNoContent, s.authorize("GET", append(attributeLines(16), "Weir-Subject: most", "Weir-Resource: none")...).status)
}

func attributeLines(n int) (lines []string) {
	for i := range n {
		lines = append(lines, "Weir-Attribute-A"+itoa(int64(i))+": x")
	}
	return lines
}

// Mistakes of the gateway and failures of Weir are not decisions.
func TestAuthorizeUndecided(t *testing.T) {
	s := newCheckStack(t)
	for name, c := range map[string]struct {
		lines  []string
		status int
		code   string
	}{
		"a cost that is no number":   {[]string{"Weir-Cost: 1e2"}, 422, "INVALID_REQUEST"},
		"a cost that is too great":   {[]string{"Weir-Cost: 1000000000000001"}, 422, "INVALID_REQUEST"},
		"two costs":                  {[]string{"Weir-Cost: 1", "Weir-Cost: 1"}, 422, "INVALID_REQUEST"},
		"an empty cost":              {[]string{"Weir-Cost:"}, 422, "INVALID_REQUEST"},
		"an unknown plan":            {[]string{"Weir-Plan: gold"}, 422, "UNKNOWN_PLAN"},
		"a plan that is no encoding": {[]string{"Weir-Plan: %zz", "Weir-Encoding: percent"}, 422, "UNKNOWN_PLAN"},
		"an unknown encoding":        {[]string{"Weir-Encoding: base64"}, 422, "INVALID_REQUEST"},
		"a status that lets pass":    {[]string{"Weir-Denied-Status: 200"}, 400, "INVALID_HEADER"},
		"two keys":                   {[]string{"Weir-Key: " + s.other}, 400, "INVALID_HEADER"},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(outer *testing.T) { s.t = outer }(s.t)
			s.t = t
			s.authorize("GET", append(c.lines, "Weir-Subject: a")...).problem(c.status, c.code)
		})
	}
	for key, code := range map[string]string{"": "MISSING_KEY", "nonsense": "MALFORMED_KEY"} {
		c := s.dial()
		c.send("GET /v1/authorize HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + s.key + "\r\nWeir-Key: " + key + "\r\nWeir-Subject: a\r\n\r\n")
		a := c.receive()
		a.problem(401, code)
		a.checkDecisionHeader()
	}
	c := s.dial()
	c.send(strings.Replace(s.ask("GET", "Weir-Subject: a"), "/v1/authorize", "/v1/authorize/none", 1))
	a := c.receive()
	a.problem(404, "NOT_FOUND")
	a.checkDecisionHeader()
	s.untouched("a")
}

// The server does not wait for the body. The bytes after the head of a request with a body are not
// read as a request.
func TestAuthorizeIgnoresBodies(t *testing.T) {
	s := newCheckStack(t)
	t.Run("bodies", func(t *testing.T) { // each of these waits for seconds
		for name, lines := range map[string][]string{
			"announced": {"Content-Length: 1000"}, "in chunks": {"Transfer-Encoding: chunked"}, "expecting": {"Content-Length: 1000", "Expect: 100-continue"},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c := s.dial()
				c.t = t
				c.send(s.ask("POST", append(lines, "Weir-Subject: body", "Weir-Resource: bulk", "Weir-Cost: 0")...))
				require.Equal(t, http.StatusNoContent, c.receive().status)
				_, _ = io.WriteString(c.Conn, s.ask("GET", "Weir-Subject: body", "Weir-Resource: bulk"))
				c.closed()
			})
		}
	})
	require.EqualValues(t, 1_000_000, s.remaining("body", "bulk"))
}

// If the lane accepts a request to /v1/authorize, net/http must parse it in the same way.
func FuzzLaneAsk(f *testing.F) {
	head := "GET /v1/authorize HTTP/1.1\r\nHost: x\r\nWeir-Key: k\r\n"
	f.Add([]byte(head + "\r\n"))
	f.Add([]byte(head + "Weir-Subject: a b\r\nCookie: a=\xff\r\nContent-Length: 0\r\n\r\nPOST"))
	f.Add([]byte(head + "weir-denied-status:  403\r\nX_A: b\r\nConnection: Keep-Alive\r\n\r\n"))
	f.Add([]byte(strings.Replace(head, "ize ", "ize/edge/a%2F?b#c ", 1) + "\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		h, verdict := readLaneHead(b)
		require.Equal(t, before, b)
		if verdict != laneCheck || !h.authorize {
			return
		}
		in := bufio.NewReader(bytes.NewReader(b))
		r, err := http.ReadRequest(in)
		var escape url.EscapeError
		if errors.As(err, &escape) && len(h.path) > 0 {
			return // what a customer wrote below a route, and is denied for
		}
		require.NoError(t, err)
		require.Equal(t, authorizePath+string(h.path), r.RequestURI)
		require.Equal(t, string(h.method), r.Method)
		require.Equal(t, r.Method == http.MethodHead, h.withHead)
		require.False(t, r.Close)
		require.Zero(t, r.ContentLength)
		require.Nil(t, r.TransferEncoding)
		rest, err := io.ReadAll(in)
		require.NoError(t, err)
		require.Equal(t, b[h.size:], rest)
		require.Equal(t, []string{string(h.key)}, r.Header["Weir-Key"])
		require.Equal(t, string(h.requestID), r.Header.Get("X-Request-Id"))

		var sc scratch
		want, got := authorizeQuestion{}, authorizeQuestion{key: string(h.key), lines: h.lines, deniedStatus: h.deniedStatus, via: via{path: h.path, method: h.method}}
		want.fromHTTP(r, &sc)
		require.Nil(t, want.unreadable)
		require.Equal(t, want.key, got.key)
		require.Equal(t, string(want.via.path), string(got.via.path))
		if len(h.path) > 0 {
			return
		}
		require.Equal(t, want.deniedStatus, got.deniedStatus)
		type outcome struct {
			reqs    []check.Request
			problem *Problem
			refused check.Code
		}
		read := func(q *authorizeQuestion, sc *scratch) (o outcome) {
			reqs, p := q.decode(nil, sc)
			o.reqs, o.problem = append(o.reqs, reqs...), p
			if len(sc.refused) > 0 {
				o.refused = sc.refused[0].Code
			}
			return o
		}
		a, b2 := read(&want, &sc), read(&got, new(scratch))
		require.Equal(t, a.refused == check.NoCode, b2.refused == check.NoCode)
		require.Equal(t, a.problem == nil, b2.problem == nil)
		if len(a.reqs) > 0 {
			require.ElementsMatch(t, a.reqs[0].Attributes, b2.reqs[0].Attributes)
			a.reqs[0].Attributes, b2.reqs[0].Attributes = nil, nil
			require.Equal(t, a.reqs, b2.reqs)
		}
	})
}
