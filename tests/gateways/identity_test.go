package gateways

import (
	"bufio"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

// disguises are headers with which a customer could be counted as one user and be another one, or
// nobody, for the application. WHO is the user whom the gateway has authenticated.
var disguises = []struct {
	headers []string
	// dropped: the headers ask for X-User not to be forwarded, so the request must be refused.
	dropped bool
	// repeated: the refusal needs a look at more than the first Connection. nginx does not take it,
	// and forwards X-User whatever Connection says.
	repeated bool
}{
	{headers: []string{"Connection: X-User", "X-User: WHO"}, dropped: true},
	{headers: []string{"X-User: WHO", "Connection: X-User"}, dropped: true},
	{headers: []string{"Connection: close, x-user", "X-User: WHO"}, dropped: true},
	{headers: []string{"Connection: keep-alive,X-USER", "X-User: WHO"}, dropped: true},
	{headers: []string{"Connection:\tX-User\t,close", "X-User: WHO"}, dropped: true},
	{headers: []string{"Connection: \"x\", X-User", "X-User: WHO"}, dropped: true},
	{headers: []string{"Connection: close,\r\n X-User", "X-User: WHO"}, dropped: true},
	{headers: []string{"Connection: Upgrade, X-User", "Upgrade: websocket", "X-User: WHO"}, dropped: true},
	{headers: []string{"Connection: close", "Connection: X-User", "X-User: WHO"}, dropped: true, repeated: true},
	{headers: []string{"Connection: close", "X-User: WHO", "connection: keep-alive, x-User"}, dropped: true, repeated: true},
	{headers: []string{"Proxy-Connection: X-User", "X-User: WHO"}},
	{headers: []string{"Keep-Alive: X-User", "X-User: WHO"}},
	{headers: []string{"Connection: close, TE", "TE: trailers, X-User", "X-User: WHO"}},
	{headers: []string{"X-User: WHO", "X_User: forged"}},
	{headers: []string{"X_User: forged", "X-User: WHO"}},
	{headers: []string{"x_user: forged", "X_USER: forged", "X-User: WHO"}},
	{headers: []string{"X_User: forged"}},
	{headers: []string{"X-User:", "X_User: forged"}},
	{headers: []string{"Connection: X_User", "X_User: forged", "X-User: WHO"}},
	{headers: []string{"X-User:", "X-User: WHO"}},
	{headers: []string{"X-User: ", "x-user: WHO"}},
	{headers: []string{"X-User: WHO", "X-User:"}},
	{headers: []string{"X-User:", "X-User:", "X-User: WHO"}},
	{headers: []string{"X-User: WHO", "X-User: forged"}},
	{headers: []string{"X-User: WHO,forged"}},
	{headers: []string{"X-User: WHO", "Trailer: X-User"}},
	{headers: []string{"X-User:\tWHO\t"}},
	{headers: []string{"X-User: WHO", "Connection: close, Host"}},
	{headers: []string{"X-User: WHO"}},
}

// knowsWhoAsks sends disguised requests. The application must get exactly the user whom Weir has
// counted, and no other header that it could read as X-User, also if Weir is dead.
func (g *gateway) knowsWhoAsks(t *testing.T) {
	for i, d := range disguises {
		user := g.recipe.name + " disguised " + strconv.Itoa(i)
		head := strings.ReplaceAll(strings.Join(d.headers, "\r\n"), "WHO", user)
		g.identifies(t, "GET /orders HTTP/1.1\r\nHost: gateway.test\r\n"+head+"\r\n\r\n", d.dropped, d.repeated && g.forwardsAlways())
	}
	g.relay.die()
	for _, d := range disguises {
		g.app.take()
		answers := g.sendPatiently(t, "GET /orders HTTP/1.1\r\nHost: gateway.test\r\n"+strings.Join(d.headers, "\r\n")+"\r\n\r\n")
		received := g.app.take()
		if d.dropped && !(d.repeated && g.forwardsAlways()) {
			require.Regexp(t, "^HTTP/1.1 400 ", answers[0], "%q", d.headers)
			require.Empty(t, received, "%q", d.headers)
		}
		for _, one := range received {
			require.Equal(t, one.header.Values("X-User"), arrived(one), "%q", d.headers)
		}
	}
	g.relay.listen()
}

// forwardsAlways reports whether the gateway forwards X-User also if Connection names it.
func (g *gateway) forwardsAlways() bool { return strings.HasPrefix(g.recipe.page(), "nginx") }

// countsEachRequest sends two requests at once, the first one with a method that no gateway knows.
// A gateway that only copies bytes from then on would not count the second one.
func (g *gateway) countsEachRequest(t *testing.T) {
	g.relay.clear()
	g.app.take()
	user := g.recipe.name + " each"
	conn, err := outside.Dial("tcp", g.address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(harness.Patience)))
	_, err = io.WriteString(conn, "BREW /orders HTTP/1.1\r\nHost: gateway.test\r\nX-User: "+user+" 1\r\n\r\n"+
		"GET /orders HTTP/1.1\r\nHost: gateway.test\r\nX-User: "+user+" 2\r\n\r\n")
	require.NoError(t, err)
	for from := bufio.NewReader(conn); len(g.app.all()) < 2; {
		response, err := http.ReadResponse(from, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, response.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	asked, received := g.relay.requests(), g.app.take()
	require.Len(t, asked, 2)
	require.Len(t, received, 2)
	for i := range asked {
		require.Equal(t, []string{user + " " + strconv.Itoa(i+1)}, g.counted(t, asked[i]))
		require.Equal(t, g.counted(t, asked[i]), arrived(received[i]))
		for name := range received[i].header {
			require.NotContains(t, name, "Weir", "a header between the gateway and Weir")
		}
	}
}

// identifies sends a raw request, and compares who was counted with who arrives.
func (g *gateway) identifies(t *testing.T, raw string, dropped, ignored bool) {
	t.Helper()
	g.relay.clear()
	g.app.take()
	answers := g.sendPatiently(t, raw)
	asked, received := g.relay.requests(), g.app.take()
	if dropped && !ignored {
		require.Len(t, answers, 1, raw)
		require.Regexp(t, "^HTTP/1.1 400 ", answers[0], raw)
		require.Empty(t, asked, raw)
		require.Empty(t, received, raw)
		return
	}
	require.LessOrEqual(t, len(received), len(asked), raw)
	if len(received) == 0 {
		require.NotContains(t, strings.Join(answers, "\n"), "HTTP/1.1 200 ", raw)
		return
	}
	require.Len(t, received, 1, raw)
	require.Len(t, asked, 1, raw)
	require.Equal(t, http.StatusNoContent, asked[0].status, raw)
	require.Equal(t, g.counted(t, asked[0]), arrived(received[0]), raw)
}

// counted returns the subject of a request to Weir; nil: there is none, and a route counts by the
// address.
func (g *gateway) counted(t *testing.T, a asked) []string {
	t.Helper()
	headers := allHeadersOf(a.head)
	if g.recipe.route {
		return headers["x-user"]
	}
	values := headers["weir-subject"]
	if len(headers["weir-encoding"]) == 0 {
		return values
	}
	require.Len(t, values, 1, a.head)
	decoded, err := url.PathUnescape(values[0])
	require.NoError(t, err)
	return []string{decoded}
}

// arrived returns the values of all headers that an application may read as X-User. CGI, and with
// it WSGI, Rack and PHP, do not distinguish - and _.
func arrived(r received) (users []string) {
	for name, values := range r.header {
		if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), "X-User") {
			users = append(users, values...)
		}
	}
	return users
}
