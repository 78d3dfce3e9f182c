package gateways

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// All gateways that are installed from a package, with the configurations of their pages.
func TestGateways(t *testing.T) {
	w := newWorld(t)
	report := &report{}
	t.Run("all", func(t *testing.T) {
		for _, r := range recipes {
			if r.built && *builtPrograms == "" {
				continue // `make gateways` builds them
			}
			t.Run(r.name, func(t *testing.T) {
				t.Parallel()
				patient := startGateway(t, w, r, true, true)
				t.Run("decisions", patient.decides)
				if r.route {
					t.Run("route", patient.followsTheRoute)
				}
				t.Run("the application", patient.leavesTheApplicationAlone)
				t.Run("connections", patient.keepsConnections)
				t.Run("hostile customers", patient.withstands)
				t.Run("each request", patient.countsEachRequest)
				t.Run("disguised customers", patient.knowsWhoAsks)
				for _, failOpen := range []bool{true, false} {
					g := startGateway(t, w, r, failOpen, false)
					t.Run("failures, fail open "+strconv.FormatBool(failOpen), func(t *testing.T) { g.fails(t, failOpen, report) })
				}
				if r.more != nil {
					r.more(t, w, r)
				}
			})
		}
	})
	if *printTables {
		report.measure(t, w)
		report.print()
	}
}

// answer is a response to a customer.
type answer struct {
	status int
	header http.Header
	body   string
}

// customerAddress is the address of all customers, different from that of the gateways.
const customerAddress = "127.0.0.2"

var outside = &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(customerAddress)}}

// customer returns a new client, which never repeats a request.
func customer(t testing.TB) *http.Client {
	transport := &http.Transport{DisableCompression: true, DialContext: outside.DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: harness.Patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

func (g *gateway) send(t testing.TB, c *http.Client, method, path, body string, headers ...string) answer {
	t.Helper()
	return send(t, c, method, g.address, path, body, headers...)
}

func send(t testing.TB, c *http.Client, method, address, path, body string, headers ...string) answer {
	t.Helper()
	request, err := http.NewRequest(method, "http://"+address+path, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		request.Header.Add(headers[i], headers[i+1])
	}
	response, err := c.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return answer{response.StatusCode, response.Header, string(read)}
}

func (g *gateway) get(t testing.TB, c *http.Client, subject string) answer {
	t.Helper()
	return g.send(t, c, http.MethodGet, "/orders?page=2", "", "X-User", subject)
}

// Allowed requests reach the application, the first one over the limit gets 429, and the customer
// sees the headers of the limit on both.
func (g *gateway) decides(t *testing.T) {
	c := customer(t)
	subject := g.recipe.name + " decides"
	for used := 1; used <= limit; used++ {
		got := g.get(t, c, subject)
		require.Equal(t, http.StatusOK, got.status, got.body)
		require.Equal(t, "app", got.body)
		require.Equal(t, "yes", got.header.Get("X-App"))
		if !g.recipe.noHeaders {
			require.Regexp(t, `^"api";r=`+strconv.Itoa(limit-used)+`;t=[0-9]+$`, strings.Join(got.header.Values("RateLimit"), "|"))
			require.Equal(t, `"api";q=3;w=3600`, strings.Join(got.header.Values("RateLimit-Policy"), "|"))
		}
		require.Empty(t, got.header.Values("Retry-After"))
	}
	received := g.app.take()
	require.Len(t, received, limit)
	require.Equal(t, "/orders?page=2", received[0].uri)

	got := g.get(t, c, subject)
	require.Equal(t, http.StatusTooManyRequests, got.status, got.body)
	require.Len(t, got.header.Values("Retry-After"), 1)
	seconds, err := strconv.Atoi(got.header.Get("Retry-After"))
	require.NoError(t, err)
	require.Positive(t, seconds)
	require.LessOrEqual(t, seconds, 3600)
	require.Regexp(t, `^"api";r=0;t=[0-9]+$`, strings.Join(got.header.Values("RateLimit"), "|"))
	require.Equal(t, `"api";q=3;w=3600`, strings.Join(got.header.Values("RateLimit-Policy"), "|"))
	require.Contains(t, got.header.Get("Content-Type"), "application/json")
	var denial struct {
		Allowed *bool
		Subject string
		Error   struct{ Code string }
	}
	require.NoError(t, json.Unmarshal([]byte(got.body), &denial), got.body)
	require.Equal(t, "RATE_LIMIT_EXCEEDED", denial.Error.Code)
	if !g.recipe.ownBody {
		require.NotNil(t, denial.Allowed)
		require.Equal(t, subject, denial.Subject)
	}
	if !g.recipe.noBodies {
		require.Equal(t, http.StatusTooManyRequests, g.send(t, c, http.MethodPost, "/orders", "body", "X-User", subject).status)
	}
	require.Empty(t, g.app.take(), "denied requests must not reach the application")

	if g.recipe.route {
		return // the subject is the address then: followsTheRoute
	}
	// A request without a subject is denied. No wait helps, so there is no Retry-After.
	got = g.send(t, c, http.MethodGet, "/orders", "")
	require.Equal(t, http.StatusTooManyRequests, got.status, got.body)
	require.Empty(t, got.header.Values("Retry-After"))
	require.Empty(t, g.app.take())
}

// A route sets the subject, the resource and the cost of a request. Customers cannot change them.
func (g *gateway) followsTheRoute(t *testing.T) {
	c := customer(t)
	subject := g.recipe.name + " follows"
	for range limit {
		require.Equal(t, http.StatusOK, g.get(t, c, subject).status)
	}
	// Denials show how the request was read.
	read := func(method, path string, headers ...string) (denial string) {
		t.Helper()
		g.relay.clear()
		require.Equal(t, http.StatusTooManyRequests, g.send(t, c, method, path, "", headers...).status)
		requests := g.relay.requests()
		require.Len(t, requests, 1)
		_, denial, _ = strings.Cut(requests[0].answer, "\r\n\r\n")
		return denial
	}
	for _, example := range []struct{ method, path, resource string }{
		{http.MethodGet, "/orders/7?page=2", "orders:read"},
		{http.MethodGet, "/%6frders/%37", "orders:read"},
		{http.MethodPost, "/orders", "orders:create"},
		{http.MethodDelete, "/orders/7", "default"},
		{http.MethodGet, "/elsewhere", "default"},
	} {
		denial := read(example.method, example.path, "X-User", subject)
		require.Contains(t, denial, `"subject":"`+subject+`"`)
		require.Contains(t, denial, `"resource":"`+example.resource+`"`, "%s %s", example.method, example.path)
		for _, forged := range []string{"X-Forwarded-Uri", "X-Original-Uri", "X-Original-Url"} {
			denial = read(example.method, example.path, "X-User", subject, forged, "/orders/7/forged", "X-Forwarded-Method", "PUT", "X-Original-Method", "PUT")
			require.Regexp(t, `"resource":"`+example.resource+`"|"code":"RESOURCE_INVALID"`, denial, "%s %s", example.method, example.path)
		}
	}
	require.Equal(t, http.StatusTooManyRequests, g.send(t, c, http.MethodGet, "/", "", "X-User", subject, "X-User", subject).status)

	// Two orders cost 4, which is more than the limit.
	g.app.take()
	require.Equal(t, http.StatusOK, g.send(t, c, http.MethodPost, "/orders", "", "X-User", subject+" costs").status)
	require.Equal(t, http.StatusTooManyRequests, g.send(t, c, http.MethodPost, "/orders", "", "X-User", subject+" costs").status)
	require.Len(t, g.app.take(), 1)

	// Without X-User the address is the subject, and a customer cannot choose it.
	for i := 0; i < limit; i++ {
		g.send(t, c, http.MethodGet, "/orders/7", "", "X-Forwarded-For", "203.0.113."+strconv.Itoa(i))
	}
	denial := read(http.MethodGet, "/orders/7", "X-Forwarded-For", "203.0.113.99", "X-Real-Ip", "203.0.113.99", "Forwarded", "for=203.0.113.99")
	require.Contains(t, denial, `"subject":"`+customerAddress+`"`)
	g.app.take()
}

// The application gets the request unchanged, and its responses reach the customer unchanged, even
// those that look like a response of Weir. It never sees Weir's key.
func (g *gateway) leavesTheApplicationAlone(t *testing.T) {
	c := customer(t)
	body := strings.Repeat("0123456789", 10_000)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch} {
		sent := body
		if g.recipe.noBodies {
			got := g.send(t, c, method, "/orders", body, "X-User", g.recipe.name+method)
			require.Equal(t, http.StatusRequestEntityTooLarge, got.status)
			require.Empty(t, g.app.take())
			sent = ""
		}
		got := g.send(t, c, method, "/orders%20x?q=%C3%A9", sent, "X-User", g.recipe.name+method, "Authorization", "Bearer customer")
		require.Equal(t, http.StatusOK, got.status, got.body)
		received := g.app.take()
		require.Len(t, received, 1)
		require.Equal(t, method, received[0].method)
		require.Equal(t, "/orders%20x?q=%C3%A9", received[0].uri)
		require.Equal(t, sent, received[0].body)
		require.Equal(t, "Bearer customer", received[0].header.Get("Authorization"))
		require.Equal(t, []string{g.recipe.name + method}, received[0].header.Values("X-User"))
		for name := range received[0].header {
			require.NotContains(t, name, "Weir", "the application sees it")
		}
	}
	for _, status := range []int{400, 401, 403, 404, 429, 500, 502, 503, 504} {
		subject := g.recipe.name + " app " + strconv.Itoa(status)
		got := g.send(t, c, http.MethodDelete, "/orders", "", "X-User", subject, "X-App-Status", strconv.Itoa(status))
		require.Equal(t, status, got.status, got.body)
		require.Equal(t, "app", got.body)
		require.Len(t, g.app.take(), 1, "status %d: a request must reach the application exactly once", status)
	}
	require.Empty(t, g.send(t, c, http.MethodHead, "/orders", "", "X-User", g.recipe.name+" HEAD").body)
	require.Len(t, g.app.take(), 1)
}

// A gateway that connects for each check would double its latency.
func (g *gateway) keepsConnections(t *testing.T) {
	c := customer(t)
	g.get(t, c, g.recipe.name+" connects")
	g.relay.clear()
	const requests = 40
	for i := range requests {
		require.Equal(t, http.StatusOK, g.get(t, c, g.recipe.name+" connects "+strconv.Itoa(i)).status)
	}
	require.Len(t, g.relay.requests(), requests, "one check for each request")
	require.LessOrEqual(t, g.relay.accepts(), g.recipe.connections)
	g.app.take()
}

// fails verifies what customers get if Weir does not decide, and that decisions count again as soon
// as it does.
func (g *gateway) fails(t *testing.T, failOpen bool, report *report) {
	c := customer(t)
	name := g.recipe.name + " fails " + strconv.FormatBool(failOpen) + " "
	expect := func(got answer, what string) {
		t.Helper()
		report.failure(g.recipe, what, failOpen, got.status)
		reached := len(g.app.take())
		if failOpen {
			require.Equal(t, http.StatusOK, got.status, "%s: %s", what, got.body)
			require.Equal(t, "app", got.body)
			require.Equal(t, 1, reached)
			return
		}
		require.GreaterOrEqual(t, got.status, 500, "%s: %s", what, got.body)
		require.Zero(t, reached, what)
	}
	recovers := func(after string) {
		t.Helper()
		try := 0
		require.Eventually(t, func() bool { // its timeout is short, and this machine may be slow
			try++
			subject := name + after + strconv.Itoa(try)
			g.relay.clear()
			got := g.get(t, c, subject)
			return got.status == http.StatusOK && g.relay.allowed() == 1
		}, harness.Patience, harness.Tick, "no recovery after: %s", after)
		g.app.take()
	}
	recovers("start")
	// A denial, because a late response must not look like an allowed request.
	denied := name + "denied"
	require.Eventually(t, func() bool { return g.get(t, c, denied).status == http.StatusTooManyRequests }, harness.Patience, harness.Tick)
	g.app.take()

	for _, failure := range []struct {
		what string
		behavior
	}{{"hangs", hanging}, {"crashes", crashing}, {"over quota", exhausted}} {
		what := failure.what
		g.relay.behave(failure.behavior)
		expect(g.get(t, c, denied), what)
		if !g.recipe.noBodies {
			expect(g.send(t, c, http.MethodPost, "/", "body", "X-User", name+what), what)
		}
		g.relay.behave(healthy)
		recovers(what)
	}
	g.relay.die()
	expect(g.get(t, c, denied), "is dead")
	g.relay.listen()
	recovers("is dead")

	g.relay.behave(late)
	g.relay.clear()
	for try := 0; len(g.relay.requests()) == 0; try++ { // the gateway may give up before it has asked
		require.Less(t, try, 100)
		expect(g.get(t, c, denied), "answers late")
	}
	g.relay.answerNow()
	g.relay.behave(healthy)
	recovers("answers late")
	require.Eventually(t, func() bool { return g.get(t, c, denied).status == http.StatusTooManyRequests }, harness.Patience, harness.Tick)
	g.app.take()

	// A key that Weir does not know is an error of the operator, and must not allow everything.
	g.relay.behave(wrongKey)
	var got answer
	require.Eventually(t, func() bool { // Weir may answer too late, which is another failure
		g.app.take()
		got = g.get(t, c, name+"wrong key")
		return got.status >= 400 && len(g.app.take()) == 0
	}, harness.Patience, harness.Tick)
	report.failure(g.recipe, "wrong key", failOpen, got.status)
	require.NotEqual(t, http.StatusTooManyRequests, got.status)
}

// withstands sends attacks of customers. For each of them, Weir gets only what the gateway sets,
// and the application gets only the requests that Weir has allowed, at most up to the limit.
func (g *gateway) withstands(t *testing.T) {
	require.GreaterOrEqual(t, len(attacks), 50)
	c := customer(t)
	late := 0 // allowed requests of the attack before, which may still reach the application
	for i, attack := range attacks {
		g.relay.clear()
		g.app.take()
		raw := strings.ReplaceAll(attack.raw, "GATEWAY", g.recipe.name)
		raw = strings.ReplaceAll(raw, "KEY", g.replace[pageKey])
		unanswered := 0
		send := g.sendRaw
		if strings.Contains(raw, "100-continue") {
			send = g.sendPatiently // Caddy 2.6.2 crashes if the customer leaves meanwhile (caddyserver/caddy#5347)
		}
		for range limit + 2 {
			answers := send(t, raw)
			if len(answers) == 0 {
				unanswered++
			}
			for _, got := range answers {
				require.NotContains(t, got, g.replace[pageKey], "%s: the customer sees the key", attack.name)
			}
		}
		reached, allowed := len(g.app.take()), g.relay.allowed()
		require.LessOrEqual(t, reached, allowed+late, "%s: only allowed requests reach the application", attack.name)
		require.LessOrEqual(t, reached, limit+late, "%s: the limit is exceeded", attack.name)
		late = max(0, min(allowed-reached, unanswered))
		for _, asked := range g.relay.requests() {
			g.clean(t, attack.name, asked)
		}
		// The gateway still works for others, and connections have no remaining bytes.
		got := g.get(t, c, g.recipe.name+" after attack "+strconv.Itoa(i))
		require.Equal(t, http.StatusOK, got.status, "%s: the next customer gets %s", attack.name, got.body)
	}
	g.app.take()
}

// clean verifies that a request to Weir has the Weir headers that the page sets, and no others.
func (g *gateway) clean(t *testing.T, attack string, a asked) {
	t.Helper()
	headers := headersOf(a.head)
	for name, values := range headers {
		switch name {
		case "weir-key":
			require.Equal(t, []string{g.replace[pageKey]}, values, "%s:\n%s", attack, a.head)
		case "weir-resource":
			require.Equal(t, []string{"api"}, values, "%s:\n%s", attack, a.head)
		case "weir-denied-status":
			require.Equal(t, []string{"403"}, values, "%s:\n%s", attack, a.head)
		case "weir-encoding":
			require.Equal(t, []string{"percent"}, values, "%s:\n%s", attack, a.head)
		case "weir-subject":
			require.NotContains(t, values, "forged", "%s:\n%s", attack, a.head)
		default:
			require.Fail(t, "a header of the customer reaches Weir", "%s: %s\n%s", attack, name, a.head)
		}
	}
	require.Contains(t, headers, "weir-key", "%s:\n%s", attack, a.head)
	if g.recipe.route {
		require.Len(t, headers, 1, "%s: a route needs only the key\n%s", attack, a.head)
		require.Regexp(t, "^GET /v1/authorize/"+g.recipe.name+"[? ]", a.head, "%s", attack)
		return
	}
	require.Contains(t, headers, "weir-resource", "%s:\n%s", attack, a.head)
}

// sendRaw sends bytes unchanged, and returns all responses until the gateway closes the connection.
// It closes its half of the connection only after a response, because some gateways treat that as a
// customer who has left. A gateway that waits for more bytes gets EOF after a while.
func (g *gateway) sendRaw(t testing.TB, raw string) (answers []string) {
	t.Helper()
	return g.sendAndWait(t, raw, 300*time.Millisecond)
}

// sendPatiently is sendRaw for a complete request: there is a response, however long it takes.
func (g *gateway) sendPatiently(t testing.TB, raw string) (answers []string) {
	t.Helper()
	return g.sendAndWait(t, raw, harness.Patience)
}

func (g *gateway) sendAndWait(t testing.TB, raw string, wait time.Duration) (answers []string) {
	t.Helper()
	conn, err := outside.Dial("tcp", g.address)
	require.NoError(t, err)
	defer conn.Close()
	end := func() { _ = conn.(*net.TCPConn).CloseWrite() }
	defer time.AfterFunc(wait, end).Stop()
	require.NoError(t, conn.SetDeadline(time.Now().Add(harness.Patience)))
	_, _ = io.WriteString(conn, raw) // the gateway may refuse it before all bytes are sent
	from := bufio.NewReader(conn)
	for {
		response, err := http.ReadResponse(from, nil)
		if err != nil {
			return answers
		}
		if response.StatusCode >= http.StatusOK { // otherwise the response itself follows
			end()
		}
		body, _ := io.ReadAll(response.Body)
		var head strings.Builder
		_ = response.Header.Write(&head)
		answers = append(answers, response.Proto+" "+response.Status+"\r\n"+head.String()+string(body))
	}
}
