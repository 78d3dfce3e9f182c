package browser

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
)

var linkPattern = regexp.MustCompile(`<a\b[^>]*?\shref="([^"#]+)`)

// No link is broken: the test requests all pages that are linked from the start page, as an owner,
// as a viewer and as the operator. It runs before the parallel tests, which create and delete
// objects of the operator's pages.
func TestNoBrokenLinks(t *testing.T) {
	w := demo(t)
	password := w.env["WEIR_PASSWORD"]
	for _, email := range []string{w.env["WEIR_EMAIL"], string(tenants.Viewer) + "@weir.example", "operator@weir.example"} {
		client := w.client(email, password)
		seen, shapes := map[string]bool{"/": true}, map[string]int{}
		for next := []string{"/", "/login"}; len(next) > 0; next = next[1:] {
			page, links := next[0], []string{}
			var response *http.Response
			require.Eventually(t, func() (answered bool) { // a busy machine may be too slow for the time limits of the database
				var err error
				response, err = client.Get(w.url + page)
				require.NoError(t, err)
				if response.StatusCode == http.StatusServiceUnavailable {
					require.NoError(t, response.Body.Close())
					return false
				}
				return true
			}, patience, tick)
			body, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusOK, response.StatusCode, "%s, for %s", page, email)
			if strings.HasPrefix(response.Header.Get("Content-Type"), "text/html") {
				for _, match := range linkPattern.FindAllStringSubmatch(string(body), -1) {
					links = append(links, match[1])
				}
			}
			for _, link := range links {
				u, err := response.Request.URL.Parse(strings.ReplaceAll(link, "&amp;", "&"))
				require.NoError(t, err, link)
				require.Equal(t, w.url, u.Scheme+"://"+u.Host, "%s links to another host", page)
				path := u.RequestURI()
				// Lists link to many pages of one kind, and charts to many periods.
				if shape := shapeOf(u); !seen[path] && shapes[shape] < 2 {
					shapes[shape]++
					seen[path] = true
					next = append(next, path)
				}
			}
		}
		require.Greater(t, len(seen), 12, "the navigation alone has that many links")
	}
}

// shapeOf returns what pages of one kind have in common: the first part of the path, the number of
// parts, and the names in the query.
func shapeOf(u *url.URL) string {
	parts := strings.Split(strings.Trim(u.Path, "/"), "/")
	shape := parts[0] + strings.Repeat("/x", len(parts)-1)
	if len(parts) > 2 {
		shape += "/" + parts[len(parts)-1]
	}
	for name := range u.Query() {
		shape += "&" + name
	}
	return shape
}

// client returns an HTTP client that is signed in.
func (w *world) client(email, password string) *http.Client {
	w.t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(w.t, err)
	client := &http.Client{Jar: secureJar{jar}}
	response, err := client.PostForm(w.url+"/login", url.Values{"email": {email}, "password": {password}, "next": {"/"}})
	require.NoError(w.t, err)
	require.NoError(w.t, response.Body.Close())
	require.Equal(w.t, http.StatusOK, response.StatusCode, "%s cannot sign in", email)
	require.Equal(w.t, "/", response.Request.URL.Path)
	return client
}

// secureJar sends secure cookies over HTTP, as browsers do for localhost.
type secureJar struct{ jar http.CookieJar }

func (j secureJar) SetCookies(u *url.URL, cookies []*http.Cookie) {
	j.jar.SetCookies(asSecure(u), cookies)
}
func (j secureJar) Cookies(u *url.URL) []*http.Cookie { return j.jar.Cookies(asSecure(u)) }

func asSecure(u *url.URL) *url.URL {
	secure := *u
	secure.Scheme = "https"
	return &secure
}
