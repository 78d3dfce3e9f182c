package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"
)

// A changed certificate is noticed by notifications of the file system, certificateSettle after the
// last one, because certificate and key are two files that are written one after the other. Network
// file systems do not notify, so the files are also read every certificatePoll.
const (
	certificateSettle = 100 * time.Millisecond
	certificatePoll   = 30 * time.Second
)

// certificate is a TLS certificate that is reloaded when its files change. A handshake uses the
// current one. If the files are invalid, the last valid certificate stays.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	current atomic.Pointer[tls.Certificate]
	seen    [sha256.Size]byte // hash of both files as last read, valid or not; only Run uses it after startup

	errors prometheus.Counter
	expiry prometheus.Gauge
}

// loadCertificate reads the files. It fails if they are not a valid pair.
func loadCertificate(certFile, keyFile string, log *slog.Logger, reg prometheus.Registerer) (*certificate, error) {
	c := &certificate{
		certFile: certFile, keyFile: keyFile, log: log,
		errors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "weir_tls_reload_errors_total", Help: "Changed certificate files that could not be used. The last valid certificate stays active.",
		}),
		expiry: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "weir_tls_certificate_expiry_timestamp_seconds", Help: "Unix time at which the certificate in use expires.",
		}),
	}
	reg.MustRegister(c.errors, c.expiry)
	if _, err := c.reload(); err != nil {
		return nil, err
	}
	return c, nil
}

// config returns the TLS configuration of a listener with this certificate.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		CipherSuites:   authenticatedSuites(),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// authenticatedSuites returns the cipher suites of TLS 1.2 without those in CBC mode, whose padding
// has been attacked repeatedly. TLS 1.3 has no such suites.
func authenticatedSuites() (ids []uint16) {
	for _, suite := range tls.CipherSuites() {
		if !strings.Contains(suite.Name, "_CBC_") {
			ids = append(ids, suite.ID)
		}
	}
	return ids
}

// reload reads the files and uses them if they have changed. It reports whether the certificate in
// use is a different one.
func (c *certificate) reload() (bool, error) {
	certPEM, err := os.ReadFile(c.certFile)
	if err != nil {
		return false, fmt.Errorf("WEIR_TLS_CERT: %w", err)
	}
	keyPEM, err := os.ReadFile(c.keyFile)
	if err != nil {
		return false, fmt.Errorf("WEIR_TLS_KEY: %w", err)
	}
	seen := sha256.Sum256(bytes.Join([][]byte{certPEM, keyPEM}, []byte{0}))
	if seen == c.seen {
		return false, nil
	}
	c.seen = seen
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return false, fmt.Errorf("WEIR_TLS_CERT and WEIR_TLS_KEY: %w", err)
	}
	c.current.Store(&pair)
	c.expiry.Set(float64(pair.Leaf.NotAfter.Unix()))
	return true, nil
}

// Run watches the files until ctx ends. It watches their directories, because files are commonly
// replaced by renaming.
func (c *certificate) Run(ctx context.Context) {
	poll := time.NewTicker(certificatePoll)
	defer poll.Stop()
	settle := time.NewTimer(0) // the files may have changed since loadCertificate
	var events chan fsnotify.Event
	var failures chan error
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
		for _, folder := range []string{filepath.Dir(c.certFile), filepath.Dir(c.keyFile)} {
			if err = watcher.Add(folder); err != nil {
				break
			}
		}
	}
	if err != nil {
		c.log.Warn("cannot watch the certificate directory; polling the files", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			settle.Reset(certificateSettle)
		case err := <-failures:
			c.log.Warn("error while watching the certificate directory", "error", err)
		case <-settle.C:
			c.refresh()
		case <-poll.C:
			c.refresh()
		}
	}
}

func (c *certificate) refresh() {
	changed, err := c.reload()
	switch {
	case err != nil:
		c.errors.Inc()
		c.log.Error("invalid certificate; the last valid one stays", "error", err)
	case changed:
		c.log.Info("certificate reloaded", "expires_at", c.current.Load().Leaf.NotAfter)
	}
}
