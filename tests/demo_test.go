package tests

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mattn/go-shellwords"
	"github.com/stretchr/testify/require"

	"weir/tests/harness"
)

func startDemo(t *testing.T, s settings, dir string) *instance {
	t.Helper()
	return harness.StartDemo(t, s, dir)
}

func demoEnv(t *testing.T, dir string) map[string]string {
	t.Helper()
	return harness.DemoEnv(t, dir)
}

// curl runs a curl command of the output, as far as such commands use curl.
func curl(t *testing.T, line string) (int, []byte) {
	t.Helper()
	words, err := shellwords.Parse(line)
	require.NoError(t, err)
	require.Equal(t, "curl", words[0])
	var url, body string
	method := http.MethodPost // for a check, and for any body without -X
	header := http.Header{}
	transport := &http.Transport{DisableKeepAlives: true}
	for n := 1; n < len(words); n++ {
		switch word := words[n]; word {
		case "-i":
		case "-X":
			n++
			method = words[n]
		case "-H":
			n++
			name, value, _ := strings.Cut(words[n], ": ")
			header.Add(name, value)
		case "-d":
			n++
			body = words[n]
		case "--cacert":
			n++
			ca, err := os.ReadFile(words[n])
			require.NoError(t, err)
			roots := x509.NewCertPool()
			require.True(t, roots.AppendCertsFromPEM(ca))
			transport.TLSClientConfig = &tls.Config{RootCAs: roots}
		default:
			require.True(t, strings.HasPrefix(word, "http") && url == "", word)
			url = word
		}
	}
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	request.Header = header
	response, err := transport.RoundTrip(request)
	require.NoError(t, err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, answer
}

// The printed command is the first thing that users run.
func TestDemoPrintsCurlLinesThatWork(t *testing.T) {
	t.Parallel()
	s, dir := newSettings(t), t.TempDir()
	i := startDemo(t, s, dir)
	var schemes []string
	for line := range strings.Lines(i.Out.String()) {
		if !strings.HasPrefix(strings.TrimSpace(line), "curl ") {
			continue
		}
		status, body := curl(t, strings.TrimSpace(line))
		require.Equal(t, http.StatusOK, status, "%s", body)
		var d decision
		require.NoError(t, json.Unmarshal(body, &d))
		require.True(t, d.Allowed)
		require.Equal(t, "api-requests", d.Rule)
		require.EqualValues(t, 100, d.Limit, "the limit of the plan free")
		scheme := "http:"
		if strings.Contains(line, "https://") {
			scheme = "https:"
		}
		schemes = append(schemes, scheme)
	}
	require.Equal(t, []string{"http:", "https:"}, schemes)

	env := demoEnv(t, dir)
	require.Len(t, env, 9)
	require.Equal(t, http.StatusOK, status(env["WEIR_URL"]+"/readyz"))
	require.True(t, strings.HasPrefix(env["WEIR_HTTPS_URL"], "https://localhost:"))
	info, err := os.Stat(filepath.Join(dir, "demo.env"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it has keys")
	require.Contains(t, i.Out.String(), env["WEIR_PASSWORD"])

	require.Contains(t, i.Out.String(), env["WEIR_URL"]+"/\n", "the dashboard")
	requireLogin(t, env)

	key := newClient(t, env["WEIR_KEY"])
	key.do(http.MethodGet, env["WEIR_URL"]+"/v1/rules", "", http.StatusOK)
	operator := newClient(t, env["WEIR_OPERATOR_KEY"])
	operator.do(http.MethodGet, env["WEIR_URL"]+"/v1/tenants", "", http.StatusOK)

	// Ctrl-C ends it immediately: there is no load balancer in front of a demo.
	i.Signal(os.Interrupt)
	require.Zero(t, i.Exit())
	require.Contains(t, i.Log(), `"for":"0s"`)
}

// requireLogin signs in to the dashboard with the printed login, as a browser would, and opens a
// rule of the demo. The API keeps its paths beside the pages.
func requireLogin(t *testing.T, env map[string]string) {
	t.Helper()
	noRedirect := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := noRedirect.PostForm(env["WEIR_URL"]+"/login", url.Values{
		"email": {env["WEIR_EMAIL"]}, "password": {env["WEIR_PASSWORD"]}, "next": {"/rules"},
	})
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusSeeOther, response.StatusCode)
	require.Equal(t, "/rules", response.Header.Get("Location"))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, env["WEIR_URL"]+"/rules", http.NoBody)
	require.NoError(t, err)
	for _, cookie := range response.Cookies() {
		request.AddCookie(cookie)
	}
	response, err = noRedirect.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, response.StatusCode)
	require.Contains(t, string(page), "Bursts of orders")
	style := regexp.MustCompile(`<link rel="stylesheet" href="([^"]+)">`).FindSubmatch(page)
	require.NotNil(t, style, "%s", page)
	require.Equal(t, http.StatusOK, status(env["WEIR_URL"]+string(style[1])), "the style sheet")

	// An unknown path is a page for a browser and a problem document for a program. Among the paths
	// of the API it is always a problem document.
	for _, c := range []struct{ path, accept, want string }{
		{"/v1/nothing", "*/*", "application/problem+json"},
		{"/v1/nothing", "text/html,*/*;q=0.8", "application/problem+json"},
		{"/nothing", "*/*", "application/problem+json"},
		{"/nothing", "text/html,*/*;q=0.8", "text/html; charset=utf-8"},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, env["WEIR_URL"]+c.path, http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Accept", c.accept)
		unknown, err := noRedirect.Do(request)
		require.NoError(t, err)
		require.NoError(t, unknown.Body.Close())
		require.Equal(t, http.StatusNotFound, unknown.StatusCode, c)
		require.Equal(t, c.want, unknown.Header.Get("Content-Type"), c)
	}
}

// Another start keeps changes to the demo, and creates no new keys.
func TestDemoKeepsChanges(t *testing.T) {
	t.Parallel()
	s, dir := newSettings(t), t.TempDir()
	i := startDemo(t, s, dir)
	first := demoEnv(t, dir)
	key := newClient(t, first["WEIR_KEY"])
	key.do(http.MethodDelete, i.URL()+"/v1/rules/search", "", http.StatusNoContent)
	key.putRule("mine", `{"resource":"mine","limit":5,"window":"1h"}`, i)
	require.Zero(t, i.Stop())

	i = startDemo(t, s, dir)
	second := demoEnv(t, dir)
	for _, name := range []string{"WEIR_KEY", "WEIR_OPERATOR_KEY", "WEIR_EMAIL", "WEIR_PASSWORD", "WEIR_OPERATOR_EMAIL", "WEIR_OPERATOR_PASSWORD"} {
		require.NotEmpty(t, first[name])
		require.Equal(t, first[name], second[name], name)
	}
	key.do(http.MethodGet, i.URL()+"/v1/rules/mine", "", http.StatusOK)
	key.do(http.MethodGet, i.URL()+"/v1/rules/search", "", http.StatusNotFound)
	require.Zero(t, i.Stop())

	// The file is lost, for example by `git clean`: the demo is still usable.
	require.NoError(t, os.Remove(filepath.Join(dir, "demo.env")))
	i = startDemo(t, s, dir)
	third := demoEnv(t, dir)
	require.NotEqual(t, first["WEIR_KEY"], third["WEIR_KEY"])
	newClient(t, third["WEIR_KEY"]).do(http.MethodGet, i.URL()+"/v1/rules/mine", "", http.StatusOK)
	require.Zero(t, i.Stop())
}
