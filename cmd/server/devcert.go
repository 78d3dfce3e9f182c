package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	localCertLife  = 397 * 24 * time.Hour // the maximum that browsers accept
	localCertRenew = 30 * 24 * time.Hour
)

// localCertificate is a certificate for this machine and the authority that signed it.
type localCertificate struct{ caFile, certFile, keyFile string }

// makeLocalCertificate writes a certificate for localhost to dir, unless dir has a valid one. The
// key of its authority is never written, so trusting the authority means trusting only this
// certificate.
func makeLocalCertificate(dir string, now time.Time) (localCertificate, error) {
	files := localCertificate{
		caFile: filepath.Join(dir, "ca.pem"), certFile: filepath.Join(dir, "cert.pem"), keyFile: filepath.Join(dir, "key.pem"),
	}
	if files.usable(now) {
		return files, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return files, fmt.Errorf("create a certificate for localhost: %w", err)
	}
	if err := files.write(now); err != nil {
		return files, fmt.Errorf("create a certificate for localhost: %w", err)
	}
	return files, nil
}

func (f localCertificate) usable(now time.Time) bool {
	pair, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
	if err != nil {
		return false
	}
	ca, err := os.ReadFile(f.caFile)
	if err != nil {
		return false
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	_, err = pair.Leaf.Verify(x509.VerifyOptions{DNSName: "localhost", Roots: roots, CurrentTime: now.Add(localCertRenew)})
	return err == nil
}

func (f localCertificate) write(now time.Time) error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := template("Weir development authority", now)
	ca.IsCA, ca.BasicConstraintsValid, ca.MaxPathLenZero = true, true, true
	ca.KeyUsage = x509.KeyUsageCertSign
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	leaf := template("localhost", now)
	leaf.KeyUsage = x509.KeyUsageDigitalSignature
	leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	leaf.DNSNames = []string{"localhost"}
	leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return firstError(
		writePEM(f.caFile, "CERTIFICATE", caDER),
		writePEM(f.keyFile, "PRIVATE KEY", keyDER),
		writePEM(f.certFile, "CERTIFICATE", leafDER),
	)
}

func template(name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		Subject:   pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), // the clock of a client may be a little behind
		NotAfter:  now.Add(localCertLife),
	}
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
