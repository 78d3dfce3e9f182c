package notify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"
)

// newClient returns a client that connects to public addresses only, and to those in the given
// networks. The address is checked when the connection is made, after the name was resolved, so a
// name that changes its address in between gains nothing. The client uses no proxy, which would
// resolve the name itself, and follows no redirect.
func newClient(networks []netip.Prefix) *http.Client {
	dialer := &net.Dialer{Timeout: 5 * time.Second, Control: control(networks)}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:           dialer.DialContext,
			TLSHandshakeTimeout:   5 * time.Second,
			ResponseHeaderTimeout: patience,
			MaxIdleConns:          2 * 2 * shared,
			MaxIdleConnsPerHost:   1,
			IdleConnTimeout:       30 * time.Second,
			MaxConnsPerHost:       2 * shared,
			// An answer matters by its status alone, so its header needs little room.
			MaxResponseHeaderBytes: 16 << 10,
			DisableCompression:     true,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// control returns the function that checks an address before a connection is made to it. The
// library knows the networks that IANA lists as special: private, loopback, link-local, shared by
// carriers, those that embed an IPv4 address (NAT64, 6to4, Teredo), and others.
func control(networks []netip.Prefix) func(network, address string, conn syscall.RawConn) error {
	var v4, v6 []netip.Prefix
	for _, p := range networks {
		if p.Addr().Is4() {
			v4 = append(v4, p)
		} else {
			v6 = append(v6, p)
		}
	}
	guard := ssrf.New(ssrf.WithAnyPort(), ssrf.WithAllowedV4Prefixes(v4...), ssrf.WithAllowedV6Prefixes(v6...),
		ssrf.WithDeniedV4Prefixes(netip.MustParsePrefix("224.0.0.0/4"))) // multicast is not in that list
	return guard.Safe
}

// reasonOf returns why a request failed, in words for the tenant: without the addresses that a name
// has in an internal network.
func reasonOf(err error) string {
	var resolve *net.DNSError
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var timeout net.Error
	switch {
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, ssrf.ErrProhibitedNetwork):
		return "the host has an address in an internal network, to which nothing is sent"
	case errors.As(err, &resolve):
		return "the host cannot be resolved"
	case errors.As(err, &certificate), errors.As(err, &authority):
		return "the certificate of the host is not valid"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "the endpoint did not answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the host refuses the connection"
	case strings.Contains(err.Error(), "server gave HTTP response to HTTPS client"):
		return "the host does not speak TLS at this port"
	}
	return "the connection failed"
}

// ParseNetworks parses networks in the form 10.0.0.0/8, separated by commas, in which endpoints may
// have addresses although they are internal.
func ParseNetworks(text string) (out []netip.Prefix, err error) {
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		p, err := netip.ParsePrefix(part)
		if err != nil || p != p.Masked() || p.Addr().Is4In6() {
			return nil, errors.New("must be networks such as 10.1.0.0/16, separated by commas")
		}
		out = append(out, p)
	}
	return out, nil
}
