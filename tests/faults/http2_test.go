package faults

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"weir/tests/harness"
)

// certificate writes a self-signed certificate, and returns the settings that use it.
func certificate(m *measurement) harness.Settings {
	m.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(m.T, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(m.T, err)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(m.T, err)
	dir := m.TempDir()
	s := harness.Settings{
		"WEIR_HTTPS_ADDR": "127.0.0.1:0", "WEIR_TLS_CERT": filepath.Join(dir, "cert.pem"), "WEIR_TLS_KEY": filepath.Join(dir, "key.pem"),
	}
	require.NoError(m.T, os.WriteFile(s["WEIR_TLS_CERT"], pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o600))
	require.NoError(m.T, os.WriteFile(s["WEIR_TLS_KEY"], pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600))
	return s
}

// floods are what a hostile client repeats on a connection of HTTP/2.
var floods = map[string]func(f *http2.Framer, n uint32, head []byte) error{
	"resets": func(f *http2.Framer, n uint32, head []byte) error {
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*n + 1, BlockFragment: head, EndHeaders: true}); err != nil {
			return err
		}
		return f.WriteRSTStream(2*n+1, http2.ErrCodeCancel)
	},
	"headers without end": func(f *http2.Framer, n uint32, head []byte) error {
		if n == 0 {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head})
		}
		return f.WriteContinuation(1, false, bytes.Repeat([]byte{0x00, 0x01, 'a', 0x01, 'b'}, 1000))
	},
	"pings":    func(f *http2.Framer, n uint32, _ []byte) error { return f.WritePing(false, [8]byte{byte(n)}) },
	"settings": func(f *http2.Framer, _ uint32, _ []byte) error { return f.WriteSettings() },
}

func http2Floods(m *measurement) {
	const clients, length = 4, 3 * time.Second
	r := newRig(m.T, with(certificate(m)))
	l := r.load(r.probing()...)
	l.seconds(4)
	fault := l.now()
	base := func(h *history) time.Duration { return h.between(time.Second, fault).p99() }
	before := r.most("process_resident_memory_bytes")
	type phase struct {
		name         string
		from, to     time.Duration
		sent, closed int64
	}
	var phases []phase
	for name, frame := range floods {
		p := phase{name: name, from: l.now()}
		var sent, closed atomic.Int64
		var senders sync.WaitGroup
		for c := range clients {
			senders.Go(func() {
				for began := time.Now(); time.Since(began) < length; {
					n, ended, err := flood(r.nodes[c%instances], frame, began.Add(length))
					if err != nil {
						m.Errorf("%s: no connection: %v", name, err)
						return
					}
					sent.Add(n)
					if ended {
						closed.Add(1)
					}
				}
			})
		}
		senders.Wait()
		p.to, p.sent, p.closed = l.now(), sent.Load(), closed.Load()
		phases = append(phases, p)
	}
	after := r.most("process_resident_memory_bytes")
	l.seconds(1)
	h := l.stop()
	m.decided(h)
	for _, p := range phases {
		m.within("p99 of others during "+p.name, h.between(p.from, p.to).p99(), base(h)*3/2)
		m.some("frames of "+p.name, int(p.sent))
		m.note("%s: %d connections were closed in 3 s.", p.name, p.closed)
	}
	m.number("RSS added", (after-before)/(1<<20), 64, " MiB")
	m.note("Base p99 %s. The clients of a flood use the same processors.", round(base(h)))
}

// flood repeats a frame on a new connection until the server closes it or the time is over. It
// returns how many frames it has sent. It fails if it cannot connect.
func flood(n *node, frame func(*http2.Framer, uint32, []byte) error, until time.Time) (sent int64, closed bool, err error) {
	u, err := url.Parse(n.HTTPSURL())
	if err != nil {
		return 0, false, err
	}
	conn, err := tls.Dial("tcp", u.Host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) // a certificate of the test
	if err != nil {
		return 0, false, err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		return 0, true, nil
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // the answers
	framer := http2.NewFramer(conn, nil)
	if framer.WriteSettings() != nil {
		return 0, true, nil
	}
	var head bytes.Buffer
	encoder := hpack.NewEncoder(&head)
	for _, field := range [][2]string{{":method", "GET"}, {":scheme", "https"}, {":authority", u.Host}, {":path", "/healthz"}} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // cannot fail
	}
	_ = conn.SetWriteDeadline(until)
	for k := uint32(0); time.Now().Before(until); k++ {
		if err := frame(framer, k, head.Bytes()); err != nil {
			return sent, true, nil
		}
		sent++
	}
	return sent, false, nil
}
