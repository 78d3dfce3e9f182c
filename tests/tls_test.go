package tests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// writeCertificate writes cert.pem and key.pem for localhost and name to dir. The files are
// replaced atomically, as tools that renew certificates do.
func writeCertificate(t testing.TB, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	for file, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: cert}, "key.pem": {Type: "PRIVATE KEY", Bytes: keyDER},
	} {
		replace(t, filepath.Join(dir, file), pem.EncodeToMemory(block))
	}
}

func replace(t testing.TB, file string, content []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".new", content, 0o600))
	require.NoError(t, os.Rename(file+".new", file))
}

func secureSettings(t *testing.T) (settings, string) {
	dir := t.TempDir()
	writeCertificate(t, dir, "first")
	return newSettings(t).With(settings{
		"WEIR_HTTPS_ADDR": "127.0.0.1:0",
		"WEIR_TLS_CERT":   filepath.Join(dir, "cert.pem"), "WEIR_TLS_KEY": filepath.Join(dir, "key.pem"),
	}), dir
}

// shown returns the name in the certificate of a new handshake.
func shown(t *testing.T, i *instance) string {
	t.Helper()
	conn, err := tls.Dial("tcp", i.Address("WEIR_HTTPS_ADDR"), &tls.Config{InsecureSkipVerify: true}) // the test verifies the certificate itself
	require.NoError(t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// Certificates are renewed every few weeks, without a restart of the limiter.
func TestCertificateIsReloaded(t *testing.T) {
	t.Parallel()
	s, dir := secureSettings(t)
	i := start(t, s).AwaitReady()
	require.Equal(t, "first", shown(t, i))

	writeCertificate(t, dir, "second")
	i.AwaitLog("certificate reloaded")
	require.Equal(t, "second", shown(t, i))

	// An invalid file does not interrupt the service.
	replace(t, filepath.Join(dir, "cert.pem"), []byte("not a certificate"))
	i.AwaitLog("invalid certificate")
	require.Equal(t, "second", shown(t, i))
	require.NotContains(t, i.Metrics(), "weir_tls_reload_errors_total 0\n")

	writeCertificate(t, dir, "third")
	require.Eventually(t, func() bool { return shown(t, i) == "third" }, patience, tick)
	require.Zero(t, i.Stop())
}

func TestHTTP2OverTLSOnly(t *testing.T) {
	t.Parallel()
	s, dir := secureSettings(t)
	i := start(t, s).AwaitReady()
	tenant := newTenant(t, s, i)
	tenant.putRule("api", `{"resource":"api","limit":1,"window":"1h"}`, i)

	roots := x509.NewCertPool()
	pemBytes, err := os.ReadFile(filepath.Join(dir, "cert.pem"))
	require.NoError(t, err)
	require.True(t, roots.AppendCertsFromPEM(pemBytes))
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "localhost"}}
	defer transport.CloseIdleConnections()
	check := func(url string) *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(`{"subject":"user_42","resource":"api"}`))
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer "+tenant.key)
		request.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response
	}
	first := check(i.HTTPSURL() + "/v1/check")
	require.Equal(t, "HTTP/2.0", first.Proto)
	require.Equal(t, http.StatusOK, first.StatusCode)
	second := check(i.HTTPSURL() + "/v1/check")
	require.Equal(t, http.StatusTooManyRequests, second.StatusCode, "the same counter with each protocol")
	require.NotEmpty(t, second.Header.Get("RateLimit"))

	// Without TLS, the header timeout would not apply to HTTP/2.
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	plain := &http.Transport{Protocols: protocols}
	defer plain.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.URL()+"/healthz", nil)
	require.NoError(t, err)
	response, err := plain.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
	}
	require.Error(t, err)
}

func TestOldTLSIsRefused(t *testing.T) {
	t.Parallel()
	s, _ := secureSettings(t)
	i := start(t, s).AwaitReady()
	_, err := tls.Dial("tcp", i.Address("WEIR_HTTPS_ADDR"), &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	require.Error(t, err)
}

// HTTP/2 clients are notified of a drain, too: they share one connection among all requests.
func TestDrainOverHTTP2(t *testing.T) {
	t.Parallel()
	s, _ := secureSettings(t)
	i := start(t, s.With(settings{"WEIR_DRAIN": drain})).AwaitReady()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // accepts the test's certificate
	defer transport.CloseIdleConnections()
	get := func() *http.Response {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, i.HTTPSURL()+"/readyz", nil)
		require.NoError(t, err)
		response, err := transport.RoundTrip(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response
	}
	require.Equal(t, http.StatusOK, get().StatusCode)
	i.Signal(os.Interrupt)
	i.AwaitLog("draining")
	for range 3 { // each on a new connection, because the previous one was closed gracefully
		require.Equal(t, http.StatusServiceUnavailable, get().StatusCode)
	}
	require.Zero(t, i.Exit())
}
