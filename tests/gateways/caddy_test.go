package gateways

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// caddyPassword is the hash of "secret", with the lowest cost.
const caddyPassword = "$2b$04$hsOktgOhgBqJgq7YESXJT..2L2jSwx/JehQwzVucO.YdbEbrJRH7q"

// caddyWith starts Caddy with a changed configuration.
func caddyWith(t *testing.T, w *world, r *recipe, failOpen, patient bool, change func(files map[string]string)) *gateway {
	t.Helper()
	changed := *r
	changed.arrange = func(g *gateway, files map[string]string) []string {
		change(files)
		return r.arrange(g, files)
	}
	return startGateway(t, w, &changed, failOpen, patient)
}

// addTo adds directives to the site: before its route, or at the top of the route.
func addTo(t *testing.T, site string, inRoute bool, directives string) string {
	t.Helper()
	const route = "route {\n"
	require.Equal(t, 1, strings.Count(site, route))
	if inRoute {
		return strings.Replace(site, route, route+directives+"\n", 1)
	}
	return strings.Replace(site, route, directives+"\n"+route, 1)
}

// inPlaces runs a test for both places of an authentication and both variants of the page.
func inPlaces(t *testing.T, run func(t *testing.T, inRoute, failOpen bool)) {
	for name, inRoute := range map[string]bool{"before the route": false, "inside the route": true} {
		for variant, failOpen := range map[string]bool{"fail open": true, "fail closed": false} {
			t.Run(name+", "+variant, func(t *testing.T) { run(t, inRoute, failOpen) })
		}
	}
}

// caddyErrors tests that only failures of Weir are treated as such. All errors of a site arrive in
// handle_errors, also those of an authentication.
func caddyErrors(t *testing.T, w *world, r *recipe) {
	t.Run("authentication", func(t *testing.T) {
		inPlaces(t, func(t *testing.T, inRoute, failOpen bool) {
			user := strings.NewReplacer("/", "-", " ", "-", ",", "").Replace(t.Name())
			g := caddyWith(t, w, r, failOpen, true, func(files map[string]string) {
				files["Caddyfile"] = addTo(t, files["Caddyfile"], inRoute,
					"basicauth {\n"+user+" "+caddyPassword+"\n}\nrequest_header X-User {http.auth.user.id}")
			})
			c := customer(t)
			refuses := func() {
				t.Helper()
				for _, headers := range [][]string{nil, {"Authorization", basic(user, "wrong")}, {"X-User", user}} {
					got := g.send(t, c, http.MethodGet, "/secret", "", headers...)
					require.Equal(t, http.StatusUnauthorized, got.status, got.body)
					require.Contains(t, got.header.Get("WWW-Authenticate"), "Basic")
				}
				require.Empty(t, g.app.take(), "the application must not see a request that is not authenticated")
				require.Empty(t, g.relay.requests())
			}
			known := func() answer {
				return g.send(t, c, http.MethodGet, "/secret", "", "Authorization", basic(user, "secret"), "X-User", "forged")
			}
			refuses()
			for range limit {
				require.Equal(t, http.StatusOK, known().status)
			}
			received := g.app.take()
			require.Len(t, received, limit)
			require.Equal(t, []string{user}, received[0].header.Values("X-User"))
			require.Equal(t, http.StatusTooManyRequests, known().status)
			require.Empty(t, g.app.take())
			for _, headers := range [][]string{{"Connection", "X-User"}, {"Connection", "close, x-user"}} {
				got := g.send(t, c, http.MethodGet, "/secret", "", append(headers, "Authorization", basic(user, "secret"))...)
				require.Equal(t, http.StatusBadRequest, got.status, "the user must arrive")
			}
			require.Empty(t, g.app.take())

			g.relay.clear()
			g.relay.die()
			refuses()
			status, reached := http.StatusServiceUnavailable, 0
			if failOpen {
				status, reached = http.StatusOK, 1
			}
			require.Equal(t, status, known().status)
			require.Len(t, g.app.take(), reached)
		})
	})
	t.Run("authentication that is dead", func(t *testing.T) {
		inPlaces(t, func(t *testing.T, inRoute, failOpen bool) {
			g := caddyWith(t, w, r, failOpen, true, func(files map[string]string) {
				files["Caddyfile"] = addTo(t, files["Caddyfile"], inRoute, "forward_auth "+freeAddress(t)+" {\nuri /auth\n}")
			})
			c := customer(t)
			for range 2 {
				require.Equal(t, http.StatusBadGateway, g.get(t, c, "dead").status)
				require.Empty(t, g.app.take())
				require.Empty(t, g.relay.requests())
				g.relay.die() // and the same if Weir is dead, too
			}
		})
	})
	t.Run("other errors", func(t *testing.T) {
		for _, failOpen := range []bool{true, false} {
			g := caddyWith(t, w, r, failOpen, true, func(files map[string]string) {
				files["Caddyfile"] = addTo(t, files["Caddyfile"], true, "error /forbidden 403\nerror /unavailable 503")
			})
			c := customer(t)
			for path, status := range map[string]int{"/forbidden": http.StatusForbidden, "/unavailable": http.StatusServiceUnavailable} {
				got := g.send(t, c, http.MethodGet, path, "", "X-User", "errors")
				require.Equal(t, status, got.status)
			}
			require.Empty(t, g.app.take())
			require.Empty(t, g.relay.requests())
		}
	})
	if r.route {
		return // Weir denies requests with several subjects
	}
	t.Run("several subjects", func(t *testing.T) {
		g := startGateway(t, w, r, true, true)
		caddyCountsWhatItForwards(t, g, r.name+" several ")
		g.relay.die()
		require.Equal(t, http.StatusOK, g.send(t, customer(t), http.MethodGet, "/", "").status)
		require.NotContains(t, g.app.take()[0].header, "X-User", "an absent header stays absent")
	})
	t.Run("short form", func(t *testing.T) {
		short := func(patient bool) *gateway {
			return caddyWith(t, w, r, true, patient, func(files map[string]string) {
				options, site, found := strings.Cut(files["Caddyfile"], "route {\n")
				require.True(t, found)
				require.Contains(t, site, "handle_errors")
				files["Caddyfile"] = options + files["short"] + "}\n"
			})
		}
		g := short(true)
		c := customer(t)
		subject := r.name + " short"
		for range limit {
			require.Equal(t, http.StatusOK, g.get(t, c, subject).status)
		}
		require.Len(t, g.app.take(), limit)
		got := g.get(t, c, subject)
		require.Equal(t, http.StatusTooManyRequests, got.status)
		require.NotEmpty(t, got.header.Get("Retry-After"))
		require.Empty(t, g.app.take())
		caddyCountsWhatItForwards(t, g, subject+" several ")

		g = short(false)
		g.relay.behave(hanging)
		require.Equal(t, http.StatusGatewayTimeout, g.get(t, c, subject+" hangs").status)
		g.relay.die()
		require.Equal(t, http.StatusBadGateway, g.get(t, c, subject+" is dead").status)
		require.Empty(t, g.app.take())
	})
}

// A customer who sends several subjects is counted by the value that the application gets.
func caddyCountsWhatItForwards(t *testing.T, g *gateway, prefix string) {
	t.Helper()
	c := customer(t)
	for _, subjects := range [][]string{{"K", "x1"}, {"x2", "K"}, {"K"}, {"K,x3", ""}, {"{env.HOME}", "{http.request.uri}"}} {
		var headers []string
		for i := range subjects {
			subjects[i] = strings.TrimSpace(prefix + subjects[i])
			headers = append(headers, "X-User", subjects[i])
		}
		g.relay.clear()
		got := g.send(t, c, http.MethodGet, "/", "", headers...)
		require.Equal(t, http.StatusOK, got.status, got.body)
		joined := []string{strings.Join(subjects, ",")}
		asked, received := g.relay.requests(), g.app.take()
		require.Len(t, asked, 1)
		require.Equal(t, joined, headersOf(asked[0].head)["weir-subject"])
		require.Len(t, received, 1)
		require.Equal(t, joined, received[0].header.Values("X-User"))
	}
	require.Equal(t, http.StatusTooManyRequests, g.send(t, c, http.MethodGet, "/", "").status, "no subject")
	require.Empty(t, g.app.take())
}

func basic(user, password string) string {
	request := http.Request{Header: http.Header{}}
	request.SetBasicAuth(user, password)
	return request.Header.Get("Authorization")
}
