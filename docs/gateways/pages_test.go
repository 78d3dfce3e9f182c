package gateways

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Each page has the changes for a server with HTTPS, and all of its text that they change.
func TestConfigure(t *testing.T) {
	secure, plain := &url.URL{Scheme: "https", Host: "limits.acme.test"}, &url.URL{Scheme: "http", Host: "[2001:db8::1]:8180"}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			files, _, changes := read(name)
			require.NotEmpty(t, changes)
			for _, change := range changes {
				found := 0
				for _, file := range files {
					found += strings.Count(file.Content, change[0])
				}
				require.Equal(t, 1, found, "not found once: %s", change[0])
				require.NotEmpty(t, change[1])
			}
			all := func(server *url.URL, authorities string) string {
				files, err := Configure(name, server, "weir_key_1", authorities)
				require.NoError(t, err)
				var b strings.Builder
				for _, file := range files {
					b.WriteString(file.Content)
				}
				text := b.String()
				require.Contains(t, text, "weir_key_1")
				for _, value := range []string{Weir, Key, Host, weirInVCL} {
					require.NotContains(t, text, value)
				}
				require.Equal(t, server.Hostname() == "localhost" && name == "others", strings.Contains(text, GRPC))
				return text
			}
			require.Regexp(t, `2001:db8::1\]?:8180|2001:db8::1";\s+\.port = "8180"`, all(plain, ""))
			text := all(secure, "")
			require.Contains(t, text, "limits.acme.test:443")
			require.Contains(t, text, Authorities)
			require.Contains(t, all(secure, "/etc/weir/ca.pem"), "/etc/weir/ca.pem")
			text = all(&url.URL{Scheme: "https", Host: "localhost:8443"}, "")
			require.Contains(t, text, "127.0.0.1:8443", "one address, and not ::1 too")
			require.Regexp(t, `(?i)(host|name|sni)\b.*\blocalhost\b`, text)
		})
	}
}

func TestConfigureRefuses(t *testing.T) {
	for address, reason := range map[string]string{
		"https://192.0.2.1":            "has no name",
		"https://[2001:db8::1]:8443":   "has no name",
		"https://weir.acme.test/limit": "has a path",
	} {
		server, err := url.Parse(address)
		require.NoError(t, err)
		_, err = Configure("nginx", server, "weir_key_1", "")
		require.ErrorContains(t, err, reason, address)
	}
	_, err := Configure("nix", &url.URL{}, "", "")
	require.ErrorContains(t, err, "choose one of apache, ")
}

// The plugin for Kong reads the first of several headers, so it must replace all of them.
func TestKongForwardsWhatIsCounted(t *testing.T) {
	page, err := os.ReadFile("others.md")
	require.NoError(t, err)
	_, plugin, ok := strings.Cut(string(page), "## Kong")
	require.True(t, ok)
	read := strings.Index(plugin, `local user = kong.request.get_header("X-User")`)
	set := strings.Index(plugin, `kong.service.request.set_header("X-User", user)`)
	asked := strings.Index(plugin, `["X-User"] = user`)
	require.True(t, 0 < read && read < set && set < asked, "%d %d %d", read, set, asked)
}
