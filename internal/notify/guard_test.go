package notify_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"weir/internal/notify"
)

// Nothing is sent to an internal network, however the address is written or embedded.
func TestInternalAddresses(t *testing.T) {
	t.Parallel()
	guard := notify.Control(nil)
	for _, address := range []string{
		"127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", // loopback, private
		"169.254.169.254", "169.254.0.1", "100.64.0.1", "100.127.255.255", // metadata of clouds, link-local, carriers
		"192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "fec0::1",
		"64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", // NAT64, 6to4
		"2001::1", "2001:db8::1", "100::1", "3fff::1", "5f00::1",
	} {
		require.Error(t, guard("tcp", net.JoinHostPort(address, "443"), nil), address)
		network := "tcp4"
		if netip.MustParseAddr(address).Is6() {
			network = "tcp6"
		}
		require.Error(t, guard(network, net.JoinHostPort(address, "443"), nil), address)
	}
	for _, address := range []string{"8.8.8.8", "93.184.215.14", "2606:4700::1111", "2a00:1450::1"} {
		network := "tcp4"
		if netip.MustParseAddr(address).Is6() {
			network = "tcp6"
		}
		require.NoError(t, guard(network, net.JoinHostPort(address, "8443"), nil), address)
	}
	allowed := notify.Control([]netip.Prefix{netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32")})
	require.NoError(t, allowed("tcp4", "10.1.2.3:443", nil))
	require.NoError(t, allowed("tcp6", "[fd00:1::7]:443", nil))
	require.Error(t, allowed("tcp4", "10.2.0.1:443", nil))
	require.Error(t, allowed("tcp4", "127.0.0.1:443", nil))
	require.Error(t, allowed("unix", "/tmp/x", nil))
}

// The address is checked when the connection is made, after the name was resolved: a name of an
// internal address is refused as the address itself is, and the tenant does not learn the address.
func TestNamesOfInternalAddresses(t *testing.T) {
	r := newRig(t)
	server := newReceiver(t)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "http://"))
	require.NoError(t, err)
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(tls.Close)
	r.sender = notify.New(notify.Options{Store: r.store}) // as it is by default
	for _, url := range []string{"http://localhost:" + port, "https://localhost:" + port, "http://127.0.0.1:" + port, "https://127.0.0.1:" + port, tls.URL} {
		e, _ := r.endpoint(url)
		_, err := r.store.TestNotificationEndpoint(t.Context(), r.a, e.ID)
		require.NoError(t, err)
		r.once()
		require.Equal(t, "the host has an address in an internal network, to which nothing is sent", r.deliveries(e)[0].Why, url)
	}
	require.Empty(t, server.take())
}

// The reason of a failure is one that the tenant understands.
func TestReasons(t *testing.T) {
	r := newRig(t)
	tls := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(tls.Close)
	plain := newReceiver(t)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for url, want := range map[string]string{
		tls.URL: "the certificate of the host is not valid",
		strings.Replace(plain.URL, "http", "https", 1): "the host does not speak TLS at this port",
		gone.URL:                           "the host refuses the connection",
		"https://no-such-host.invalid/x":   "the host cannot be resolved",
		plain.URL + "/ok?token=in-the-url": "",
	} {
		e, _ := r.endpoint(url)
		_, err := r.store.TestNotificationEndpoint(t.Context(), r.a, e.ID)
		require.NoError(t, err)
		r.once()
		require.Equal(t, want, r.deliveries(e)[0].Why, url)
	}
}

func TestParseNetworks(t *testing.T) {
	t.Parallel()
	networks, err := notify.ParseNetworks("10.1.0.0/16, fd00::/8")
	require.NoError(t, err)
	require.Len(t, networks, 2)
	for _, bad := range []string{"10.1.0.0", "10.1.0.1/16", "x", "10.0.0.0/33", "::ffff:10.0.0.0/104"} {
		_, err := notify.ParseNetworks(bad)
		require.ErrorContains(t, err, "10.1.0.0/16", bad)
	}
}
