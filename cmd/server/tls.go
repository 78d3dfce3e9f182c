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

// How a changed certificate is noticed: by the file system's notification, a moment after the
// last of a burst (certificate and key are two files, written one after the other); and, where
// notifications do not arrive, as on network file systems, by a look at the files now and then.
const (
	certificateSettle = 100 * time.Millisecond
	certificatePoll   = 30 * time.Second
)

// certificate is a TLS certificate that is read again when its files change. A handshake takes
// the one that is current; a pair of files that cannot be used leaves the last good one.
type certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	current atomic.Pointer[tls.Certificate]
	seen    [sha256.Size]byte // of both files as last read, good or not; only Run uses it after start

	errors prometheus.Counter
	expiry prometheus.Gauge
}

// loadCertificate reads the pair, and fails where it is not a usable one.
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

// config is for a listener that shows this certificate.
func (c *certificate) config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		CipherSuites:   authenticatedSuites(),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}

// authenticatedSuites are the cipher suites of TLS 1.2 without those in CBC mode, whose padding has
// been attacked again and again. TLS 1.3 has none of them.
func authenticatedSuites() (ids []uint16) {
	for _, suite := range tls.CipherSuites() {
		if !strings.Contains(suite.Name, "_CBC_") {
			ids = append(ids, suite.ID)
		}
	}
	return ids
}

// reload reads the files and, if they are not as last seen, takes the pair. It reports whether
// the certificate in use is now another.
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

// Run watches the files until ctx ends. It watches their folders, because files are commonly
// replaced by renaming others over them.
func (c *certificate) Run(ctx context.Context) {
	poll := time.NewTicker(certificatePoll)
	defer poll.Stop()
	settle := time.NewTimer(0) // the first look: they may have changed since loadCertificate
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
		c.log.Warn("certificate folder cannot be watched; looking at the files now and then", "error", err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			settle.Reset(certificateSettle)
		case err := <-failures:
			c.log.Warn("certificate folder is watched badly", "error", err)
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
		c.log.Error("certificate cannot be used; the last good one stays", "error", err)
	case changed:
		c.log.Info("certificate reloaded", "expires_at", c.current.Load().Leaf.NotAfter)
	}
}
