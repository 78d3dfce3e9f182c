package origin

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRequestID(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	made := RequestID(r)
	require.Regexp(t, `^[0-9a-f]{32}$`, made)
	require.NotEqual(t, made, RequestID(r))
	for id, kept := range map[string]bool{
		"a-B_9.z:1": true, "": false, "a b": false, "a\nb": false, "é": false,
		strings.Repeat("x", maxID): true, strings.Repeat("x", maxID+1): false,
	} {
		r.Header["X-Request-Id"] = []string{id}
		require.Equal(t, kept, RequestID(r) == id, "%q", id)
	}
	r.Header["X-Request-Id"] = []string{"a", "a"}
	require.NotEqual(t, "a", RequestID(r), "two ids are ignored")
}

// An address counts for what one customer usually has, and for what one may have.
func TestNetworks(t *testing.T) {
	for host, want := range map[string][3]string{
		"192.0.2.7":              {"192.0.2.7", "", "192.0.2.0/24"},
		"::ffff:192.0.2.7":       {"192.0.2.7", "", "192.0.2.0/24"},
		"2001:db8:1:abcd::7":     {"2001:db8:1:abcd::/64", "2001:db8:1:ab00::/56", "2001:db8:1::/48"},
		"fe80::1%eth0":           {"fe80::/64", "fe80::/56", "fe80::/48"},
		"no address":             {"none", "", ""},
		"2001:db8:1:abcd::7:1:2": {"2001:db8:1:abcd::/64", "2001:db8:1:ab00::/56", "2001:db8:1::/48"},
	} {
		require.Equal(t, want, WithinHost(host).Names(), host)
	}
	require.Equal(t, "2001:db8:1::/48", Site("2001:db8:1:abcd::7"))
	require.Equal(t, "192.0.2.0/24", Site("192.0.2.7"))
	require.Equal(t, "no address", Site("no address"))
	require.Equal(t, "192.0.2.7", Network("192.0.2.7"))
	require.Equal(t, Networks{}, Within(netip.Addr{}))
}

func TestParseProxies(t *testing.T) {
	got, err := ParseProxies(" 192.0.2.7/24, 10.0.0.1,::1 , 2001:db8::/32,")
	require.NoError(t, err)
	require.Equal(t, Proxies{
		netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("10.0.0.1/32"),
		netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("2001:db8::/32"),
	}, got)
	got, err = ParseProxies("")
	require.NoError(t, err)
	require.Empty(t, got)
	for _, bad := range []string{"localhost", "192.0.2.0/33", "192.0.2.1:80", "fe80::1%eth0", "::ffff:192.0.2.0/120", "10.0.0.0/8 11.0.0.0/8"} {
		_, err := ParseProxies(bad)
		require.ErrorContains(t, err, "neither an address nor a network", bad)
	}
}

// A client cannot choose the address by which limits count it.
func TestClientBehindProxies(t *testing.T) {
	proxies, err := ParseProxies("10.0.0.0/8, 2001:db8:ffff::/48")
	require.NoError(t, err)
	for _, c := range []struct {
		name, remote string
		forwarded    []string
		want         string
	}{
		{"no proxy", "192.0.2.1:1234", nil, "192.0.2.1:1234"},
		{"an untrusted client that claims another address", "192.0.2.1:1234", []string{"198.51.100.1"}, "192.0.2.1:1234"},
		{"an untrusted client that claims to be a proxy", "192.0.2.1:1234", []string{"10.0.0.1"}, "192.0.2.1:1234"},
		{"a proxy without the header", "10.0.0.1:1234", nil, "10.0.0.1:1234"},
		{"one proxy", "10.0.0.1:1234", []string{"192.0.2.1"}, "192.0.2.1:0"},
		{"entries of the client are ignored", "10.0.0.1:1234", []string{"203.0.113.9, 192.0.2.1"}, "192.0.2.1:0"},
		{"in a separate header line", "10.0.0.1:1234", []string{"203.0.113.9", "192.0.2.1"}, "192.0.2.1:0"},
		{"two proxies", "10.0.0.1:1234", []string{"203.0.113.9, 192.0.2.1, 10.0.0.2"}, "192.0.2.1:0"},
		{"two proxies, two lines", "10.0.0.1:1234", []string{"203.0.113.9, 192.0.2.1", "10.0.0.2"}, "192.0.2.1:0"},
		{"the client is inside", "10.0.0.1:1234", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3:0"},
		{"an invalid entry before the client", "10.0.0.1:1234", []string{"x, 192.0.2.1"}, "192.0.2.1:0"},
		{"a proxy that does not report", "10.0.0.1:1234", []string{"192.0.2.1, unknown"}, "10.0.0.1:0"},
		{"an inner proxy that does not report", "10.0.0.1:1234", []string{"192.0.2.1, unknown, 10.0.0.2"}, "10.0.0.2:0"},
		{"empty", "10.0.0.1:1234", []string{""}, "10.0.0.1:0"},
		{"with a port", "10.0.0.1:1234", []string{"192.0.2.1:999"}, "192.0.2.1:0"},
		{"IPv6", "[2001:db8:ffff::1]:1234", []string{"2001:db8::7"}, "[2001:db8::7]:0"},
		{"IPv6 in brackets", "[2001:db8:ffff::1]:1234", []string{"[2001:db8::7]"}, "[2001:db8::7]:0"},
		{"IPv6 with a port", "[2001:db8:ffff::1]:1234", []string{"[2001:db8::7]:80"}, "[2001:db8::7]:0"},
		{"IPv4 in IPv6, of the connection", "[::ffff:10.0.0.1]:1234", []string{"::ffff:192.0.2.1"}, "192.0.2.1:0"},
		{"a zone", "10.0.0.1:1234", []string{"fe80::1%eth0"}, "[fe80::1]:0"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = c.remote
		if c.forwarded != nil {
			r.Header["X-Forwarded-For"] = c.forwarded
		}
		var got string
		proxies.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })).ServeHTTP(nil, r)
		require.Equal(t, c.want, got, c.name)
		require.Equal(t, c.remote, r.RemoteAddr, "the original request is unchanged")
		Proxies(nil).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.RemoteAddr })).ServeHTTP(nil, r)
		require.Equal(t, c.remote, got, "by default no proxy is trusted")
	}
}

// Whatever the header contains, the result is an address, and never one to the left of an untrusted
// one.
func FuzzClient(f *testing.F) {
	for _, seed := range []string{"", ",", "192.0.2.1", "x, 10.0.0.1", "[::1]:80, ::ffff:10.0.0.1", "fe80::1%eth0,,"} {
		f.Add(seed)
	}
	proxies, err := ParseProxies("10.0.0.0/8")
	require.NoError(f, err)
	f.Fuzz(func(t *testing.T, header string) {
		client, ok := proxies.client("10.0.0.1:1", []string{header})
		require.True(t, ok && client.IsValid() && client.Zone() == "")
		same, _ := proxies.client("10.0.0.1:1", []string{header + ",192.0.2.1"})
		require.Equal(t, netip.MustParseAddr("192.0.2.1"), same)
	})
}
