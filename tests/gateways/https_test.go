package gateways

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/docs/gateways"
	"weir/tests/harness"
)

// secured is how a gateway asks Weir over HTTPS.
type secured struct {
	direct  bool       // it asks Weir itself, which offers HTTP/2, and not the relay
	trusted *authority // whom the gateway trusts
	shown   tls.Certificate
}

// An authority issues certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return &authority{certificate, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
}

// issue returns a certificate for a name, and its files as PEM.
func (a *authority) issue(t testing.TB, name string) (pair tls.Certificate, certificate, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: a.certificate.NotBefore, NotAfter: a.certificate.NotAfter,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &private.PublicKey, a.key)
	require.NoError(t, err)
	encoded, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
	pair, err = tls.X509KeyPair(certificate, key)
	require.NoError(t, err)
	return pair, certificate, key
}

// newSecureWorld returns a world whose server has HTTPS, with a certificate of the authority.
func newSecureWorld(t testing.TB) (*world, *authority) {
	t.Helper()
	a := newAuthority(t)
	_, certificate, key := a.issue(t, "localhost")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	require.NoError(t, os.WriteFile(certFile, certificate, 0o600))
	require.NoError(t, os.WriteFile(keyFile, key, 0o600))
	w := newWorldWith(t, harness.Settings{"WEIR_HTTPS_ADDR": "127.0.0.1:0", "WEIR_TLS_CERT": certFile, "WEIR_TLS_KEY": keyFile})
	w.secure = strings.Replace(w.secure, "127.0.0.1", "localhost", 1)
	return w, a
}

// configure gives the page the files that the command weir prints for a server.
func (p *page) configure(t testing.TB, gateway, server, key, authorities string) {
	t.Helper()
	parsed, err := url.Parse(server)
	require.NoError(t, err)
	files, err := gateways.Configure(gateway, parsed, key, authorities)
	require.NoError(t, err)
	for _, file := range files {
		p.files[file.Name] = file.Content
	}
}

// secure gives the page the files that the command weir prints for a server with HTTPS. It returns
// what the test replaces in them.
func (g *gateway) secure(t testing.TB, w *world, p *page) map[string]string {
	t.Helper()
	g.relay.mu.Lock()
	g.relay.tls = &tls.Config{Certificates: []tls.Certificate{g.recipe.secured.shown}}
	g.relay.mu.Unlock()
	ca := filepath.Join(g.dir, "ca.pem")
	require.NoError(t, os.WriteFile(ca, g.recipe.secured.trusted.pem(), 0o644))
	address := g.relay.address
	if g.recipe.secured.direct {
		address = strings.TrimPrefix(w.secure, "https://")
	}
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	p.configure(t, g.recipe.page(), "https://"+net.JoinHostPort("localhost", port), w.keys["gateway"], ca)
	replace := maps.Clone(g.replace)
	for _, filled := range []string{pageKey, pageWeir, `"8080"`} {
		delete(replace, filled)
	}
	if g.recipe.stunnel != nil {
		_, port, err := net.SplitHostPort(g.inner)
		require.NoError(t, err)
		for from, to := range g.recipe.stunnel {
			replace[from] = strings.NewReplacer("INNERPORT", port, "INNER", g.inner).Replace(to)
		}
		g.beside = []string{"stunnel", filepath.Join(g.dir, "stunnel.conf")}
	}
	return replace
}

// The configurations for a server with HTTPS decide, keep connections, treat failures as the others
// do, and accept no certificate of another authority or for another name.
func TestGatewaysOverHTTPS(t *testing.T) {
	w, trusted := newSecureWorld(t)
	other := newAuthority(t)
	pair, _, _ := trusted.issue(t, "localhost")
	elsewhere, _, _ := trusted.issue(t, "elsewhere.test")
	for _, r := range recipes {
		if r.built && *builtPrograms == "" || r.routeToo && r.route {
			continue
		}
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			with := func(failOpen, patient bool, s secured) *gateway {
				changed := *r
				changed.secured = &s
				return startGateway(t, w, &changed, failOpen, patient)
			}
			t.Run("decisions of Weir itself", with(true, true, secured{direct: true, trusted: trusted, shown: pair}).decides)
			t.Run("connections", with(true, true, secured{trusted: trusted, shown: pair}).keepsConnections)
			for _, failOpen := range []bool{true, false} {
				g := with(failOpen, false, secured{trusted: trusted, shown: pair})
				t.Run("failures, fail open "+strconv.FormatBool(failOpen), func(t *testing.T) { g.fails(t, failOpen, &report{}) })
			}
			for name, s := range map[string]secured{
				"another authority": {trusted: other, shown: pair},
				"another name":      {trusted: trusted, shown: elsewhere},
			} {
				t.Run(name, func(t *testing.T) {
					g := with(false, true, s)
					got := g.get(t, customer(t), r.name+" "+name)
					require.GreaterOrEqual(t, got.status, http.StatusInternalServerError, got.body)
					require.Empty(t, g.app.take())
					require.Empty(t, g.relay.requests(), "the key reaches a server that is not Weir")
					require.Positive(t, g.relay.accepts(), "the gateway did not try")
				})
			}
		})
	}
}
