package tests

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"weir/tests/harness"
)

// secureSettings returns the settings of HTTPS and of gRPC with TLS.
func (c *canaryRun) secureSettings() settings {
	c.t.Helper()
	dir := c.t.TempDir()
	writeCertificate(c.t, dir, "canary")
	return settings{
		"WEIR_HTTPS_ADDR": "127.0.0.1:0", "WEIR_GRPC_ADDR": "127.0.0.1:0", "WEIR_GRPC_TLS": "true",
		"WEIR_TLS_CERT": filepath.Join(dir, "cert.pem"), "WEIR_TLS_KEY": filepath.Join(dir, "key.pem"),
	}
}

// askOverTLS sends keys, right and wrong, over HTTPS with HTTP/1.1 and HTTP/2, and over gRPC: where
// they belong, where they do not, and in what is no request at all.
func (c *canaryRun) askOverTLS() {
	c.t.Helper()
	key := c.tenant.key
	wrong := c.keep("key that does not exist", key[:len(key)-6]+"aaaaaa")
	for _, protocol := range []string{"h2", "http/1.1"} {
		client := &http.Client{Timeout: patience, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}}, ForceAttemptHTTP2: protocol == "h2",
		}}
		defer client.CloseIdleConnections()
		send := func(path, body string, want int, header http.Header) {
			request, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, c.i.HTTPSURL()+path, strings.NewReader(body))
			require.NoError(c.t, err)
			request.Header = header
			request.Header.Set("Content-Type", "application/json")
			response, err := client.Do(request)
			require.NoError(c.t, err)
			defer response.Body.Close()
			require.Equal(c.t, protocol == "h2", response.ProtoMajor == 2)
			_, err = io.Copy(io.Discard, response.Body)
			require.NoError(c.t, err)
			require.Equal(c.t, want, response.StatusCode, "%s %s", protocol, path)
		}
		send("/v1/check", `{"subject":"ada"}`, http.StatusOK, http.Header{"Authorization": {"Bearer " + key}})
		send("/v1/check", `{"subject":"ada"}`, http.StatusUnauthorized, http.Header{"Authorization": {"Bearer " + wrong}})
		send("/v1/check", `{"subject":"ada"}`, http.StatusUnauthorized, http.Header{"X-Api-Key": {key}, "Cookie": {"key=" + key}})
		send("/v1/check", `{"`+key+`":1}`, http.StatusBadRequest, http.Header{"Authorization": {"Bearer " + key}})
		send("/"+key+"?"+key, "", http.StatusNotFound, http.Header{})
	}
	c.askOverGRPC(wrong)
	for _, setting := range []string{"WEIR_HTTPS_ADDR", "WEIR_GRPC_ADDR"} {
		c.breakTLS(c.i.Address(setting))
	}
}

func (c *canaryRun) askOverGRPC(wrong string) {
	c.t.Helper()
	key := c.tenant.key
	g := newGateway(c.t, c.i.Address("WEIR_GRPC_ADDR"), key, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	for _, call := range []struct{ key, domain, name, value string }{
		{key, "edge", "subject", "ada"}, {wrong, "edge", "subject", "ada"}, {"", "edge", "subject", "ada"},
		{key, key, key, key}, {key, "edge", "subject", strings.Repeat(key, 100)}, {key, "edge", "resource", "\x00" + key},
	} {
		ctx := metadata.AppendToOutgoingContext(c.t.Context(), "weir-key", call.key, "x-other", key)
		answer, err := g.service.ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: call.domain, Descriptors: []*envoyratelimit.RateLimitDescriptor{{
			Entries: []*envoyratelimit.RateLimitDescriptor_Entry{{Key: call.name, Value: call.value}},
		}}})
		if call.key != key {
			require.Equal(c.t, codes.Unauthenticated, grpcstatus.Code(err), "%v", answer)
		}
		_, _ = fmt.Fprintln(&c.said, err) // answers repeat what they were asked, errors must not
	}
}

// breakTLS sends a key instead of a handshake, as the name of the server, and instead of a request.
func (c *canaryRun) breakTLS(addr string) {
	c.t.Helper()
	key := c.tenant.key
	plain, err := net.Dial("tcp", addr)
	require.NoError(c.t, err)
	_, _ = io.WriteString(plain, "GET /"+key+" HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+key+"\r\n\r\n")
	_, _ = io.Copy(io.Discard, plain) // the server closes it
	require.NoError(c.t, plain.Close())
	for _, request := range []string{
		"GET /" + key + " HTTP/9.9\r\nAuthorization: Bearer " + key + "\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat(key, 10),
	} {
		protocol := "http/1.1"
		if strings.HasPrefix(request, "PRI") {
			protocol = "h2"
		}
		secure, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, ServerName: strings.ReplaceAll(key, "_", "-") + ".example", NextProtos: []string{protocol}})
		if err != nil {
			continue // gRPC refuses HTTP/1.1 in the handshake
		}
		_, _ = io.WriteString(secure, request)
		_ = secure.CloseWrite()
		_, _ = io.Copy(io.Discard, secure)
		_ = secure.Close()
	}
	require.Equal(c.t, http.StatusOK, harness.Status(c.i.URL()+"/healthz"))
}
