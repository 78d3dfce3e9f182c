package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// A browser or curl that trusts the authority accepts the certificate for every name of this
// machine.
func TestLocalCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	now := time.Now()
	files, err := makeLocalCertificate(dir, now)
	require.NoError(t, err)
	ca, err := os.ReadFile(files.caFile)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(ca))
	first, err := os.ReadFile(files.certFile)
	require.NoError(t, err)
	block, _ := pem.Decode(first)
	leaf, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	for _, name := range []string{"localhost", "127.0.0.1", "::1"} {
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name})
		require.NoError(t, err, name)
	}
	info, err := os.Stat(files.keyFile)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	// Restarts keep the certificate, so that nobody has to trust a new one...
	_, err = makeLocalCertificate(dir, now.Add(24*time.Hour))
	require.NoError(t, err)
	second, err := os.ReadFile(files.certFile)
	require.NoError(t, err)
	require.Equal(t, first, second)
	// ...until shortly before it expires.
	_, err = makeLocalCertificate(dir, now.Add(localCertLife-localCertRenew+time.Hour))
	require.NoError(t, err)
	third, err := os.ReadFile(files.certFile)
	require.NoError(t, err)
	require.NotEqual(t, first, third)
}

// Tools that renew certificates write two files, which do not match in between.
func TestMismatchedPairLeavesTheOldCertificate(t *testing.T) {
	first, err := makeLocalCertificate(filepath.Join(t.TempDir(), "a"), time.Now())
	require.NoError(t, err)
	second, err := makeLocalCertificate(filepath.Join(t.TempDir(), "b"), time.Now())
	require.NoError(t, err)
	cert, err := loadCertificate(first.certFile, first.keyFile, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	shown := func() []byte { return cert.current.Load().Certificate[0] }
	old := shown()

	replace := func(to, from string) {
		content, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, content, 0o600))
	}
	replace(first.certFile, second.certFile)
	changed, err := cert.reload()
	require.Error(t, err)
	require.False(t, changed)
	require.Equal(t, old, shown())
	replace(first.keyFile, second.keyFile)
	changed, err = cert.reload()
	require.NoError(t, err)
	require.True(t, changed)
	require.NotEqual(t, old, shown())
	changed, err = cert.reload()
	require.NoError(t, err)
	require.False(t, changed, "no change")
}

// Suites in CBC mode are not offered, and a client that supports only these is refused.
func TestCipherSuites(t *testing.T) {
	t.Parallel()
	suites := authenticatedSuites()
	require.NotEmpty(t, suites)
	for _, suite := range tls.CipherSuites() {
		cbc := strings.Contains(suite.Name, "CBC")
		require.Equal(t, !cbc, slices.Contains(suites, suite.ID), suite.Name)
	}
}
