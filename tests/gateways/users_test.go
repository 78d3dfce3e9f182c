package gateways

import (
	"crypto/sha1"
	"encoding/base64"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func recipeNamed(t testing.TB, name string) *recipe {
	t.Helper()
	for _, r := range recipes {
		if r.name == name {
			return r
		}
	}
	require.Fail(t, "no recipe for "+name)
	return nil
}

// If Apache authenticates, its users are counted, whatever they send as X-User.
func TestApacheCountsAuthenticatedUsers(t *testing.T) {
	w := newWorld(t)
	r := *recipeNamed(t, "apache")
	r.name, r.doc, r.user = "apache-user", "apache", true
	r.paths = maps.Clone(r.paths)
	r.paths["/etc/apache2/users"] = "users"
	r.arrange = func(g *gateway, files map[string]string) []string {
		sum := sha1.Sum([]byte("pw")) // the simplest of the formats that Apache reads
		hash := "{SHA}" + base64.StdEncoding.EncodeToString(sum[:])
		files["users"] = "ann:" + hash + "\nbob:" + hash + "\ncarl:" + hash + "\n"
		// A part that needs no user, as the page describes it.
		files["weir.conf"] = strings.Replace(files["weir.conf"], "</VirtualHost>",
			"<Location /open>\nRequire all granted\n</Location>\n</VirtualHost>", 1)
		return arrangeApache(g, files)
	}
	g := startGateway(t, w, &r, true, true)
	c := customer(t)
	credentials := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}

	// Without valid credentials nothing is counted, and the application gets nothing.
	for _, headers := range [][]string{
		{},
		{"X-User", "ann"},
		{"Authorization", credentials("ann", "wrong")},
		{"Authorization", credentials("nobody", "pw"), "X-User", "ann"},
	} {
		require.Equal(t, http.StatusUnauthorized, g.send(t, c, http.MethodGet, "/orders", "", headers...).status)
	}
	require.Empty(t, g.relay.requests())
	require.Empty(t, g.app.take())

	// The first request is without X-User, and the others have a new one each.
	ann := []string{"Authorization", credentials("ann", "pw")}
	for i := range limit + 2 {
		status := http.StatusOK
		if i >= limit {
			status = http.StatusTooManyRequests
		}
		headers := ann
		if i > 0 {
			headers = append(headers[:2:2], "X-User", "spoofed "+strconv.Itoa(i))
		}
		got := g.send(t, c, http.MethodGet, "/orders", "", headers...)
		require.Equal(t, status, got.status, got.body)
		if status == http.StatusOK {
			require.Equal(t, `"api";q=3;w=3600`, got.header.Get("RateLimit-Policy"))
		} else {
			require.Contains(t, got.body, `"subject":"ann"`)
		}
	}
	for _, asked := range g.relay.requests() {
		require.Equal(t, []string{"ann"}, headersOf(asked.head)["weir-subject"])
	}
	received := g.app.take()
	require.Len(t, received, limit)
	for _, one := range received {
		require.Equal(t, []string{"ann"}, one.header.Values("X-User"))
	}

	// Another user has another limit, also with the name of the first one.
	got := g.send(t, c, http.MethodGet, "/orders", "", "Authorization", credentials("bob", "pw"), "X-User", "ann")
	require.Equal(t, http.StatusOK, got.status, got.body)
	require.Equal(t, []string{"bob"}, g.app.take()[0].header.Values("X-User"))

	g.relay.clear()
	for _, headers := range [][]string{{"Connection", "X-User"}, {"Connection", "close, x-user"}, {"X_User", "bob"}} {
		got := g.send(t, c, http.MethodGet, "/orders", "", append(headers, "Authorization", credentials("carl", "pw"))...)
		require.Equal(t, http.StatusBadRequest, got.status, "%q", headers)
	}
	require.Empty(t, g.app.take())

	require.Equal(t, http.StatusOK, g.send(t, c, http.MethodGet, "/open", "", append(ann, "X-User", "bob", "X_User", "bob")...).status)
	require.Empty(t, g.relay.requests(), "the page says that Apache does not ask where no user is needed")
	require.Empty(t, strings.Join(arrived(g.app.take()[0]), ""), "and it knows no user")
}

// A customer cannot have X-User counted and at the same time kept from the application.
func TestApacheForwardsTheSubject(t *testing.T) {
	w := newWorld(t)
	g := startGateway(t, w, recipeNamed(t, "apache"), true, true)
	c := customer(t)
	for _, headers := range [][]string{
		{"Connection", "X-User"},
		{"Connection", "keep-alive, x-uSER"},
		{"Connection", "keep-alive", "Connection", "X-User"},
	} {
		got := g.send(t, c, http.MethodGet, "/orders", "", append(headers, "X-User", "connected")...)
		require.Equal(t, http.StatusBadRequest, got.status, "%q", headers)
	}
	require.Empty(t, g.relay.requests())
	require.Empty(t, g.app.take())
	require.Equal(t, http.StatusOK, g.send(t, c, http.MethodGet, "/orders", "", "Connection", "keep-alive", "X-User", "connected").status)
	require.Len(t, g.app.take(), 1)

	require.Equal(t, http.StatusNotFound, g.send(t, c, http.MethodGet, "/a%2fb", "", "X-User", "connected").status)
	require.Empty(t, g.relay.requests()[1:], "the page says that Apache does not ask")
}
