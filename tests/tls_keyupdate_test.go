package tests

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/crypto/chacha20poly1305"
)

// Types of TLS records.
const (
	recordHandshake = 22
	recordData      = 23
)

// A rawTLS is a connection after its handshake, whose records the test writes itself: crypto/tls
// cannot send a KeyUpdate.
type rawTLS struct {
	t      *testing.T
	conn   net.Conn
	suite  uint16
	ours   trafficKey
	theirs trafficKey
}

// A trafficKey encrypts the records of one direction (RFC 8446, sections 5.2 and 7).
type trafficKey struct {
	secret []byte
	sealed uint64 // records since the key was changed
}

func dialRawTLS(t *testing.T, address string) *rawTLS {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	var log strings.Builder
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13, KeyLogWriter: &log}) // a certificate of the test
	require.NoError(t, client.Handshake())
	r := &rawTLS{t: t, conn: conn, suite: client.ConnectionState().CipherSuite}
	for line := range strings.Lines(log.String()) {
		label, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		_, text, _ := strings.Cut(rest, " ")
		secret, err := hex.DecodeString(text)
		require.NoError(t, err)
		switch label {
		case "CLIENT_TRAFFIC_SECRET_0":
			r.ours.secret = secret
		case "SERVER_TRAFFIC_SECRET_0":
			r.theirs.secret = secret
		}
	}
	return r
}

func (r *rawTLS) expand(secret []byte, label string, length int) []byte {
	info := binary.BigEndian.AppendUint16(nil, uint16(length)) // a key or a hash
	info = append(info, byte(len("tls13 "+label)))
	info = append(info, "tls13 "+label+"\x00"...)
	out, err := hkdf.Expand(sha256.New, secret, string(info), length)
	require.NoError(r.t, err)
	return out
}

// next returns the cipher and the nonce of the next record.
func (r *rawTLS) next(k *trafficKey) (cipher.AEAD, []byte) {
	var aead cipher.AEAD
	var err error
	switch r.suite {
	case tls.TLS_AES_128_GCM_SHA256:
		block, blockErr := aes.NewCipher(r.expand(k.secret, "key", 16))
		require.NoError(r.t, blockErr)
		aead, err = cipher.NewGCM(block)
	case tls.TLS_CHACHA20_POLY1305_SHA256:
		aead, err = chacha20poly1305.New(r.expand(k.secret, "key", 32))
	default:
		require.Fail(r.t, "unexpected cipher suite", tls.CipherSuiteName(r.suite))
	}
	require.NoError(r.t, err)
	nonce := r.expand(k.secret, "iv", aead.NonceSize())
	last := nonce[len(nonce)-8:]
	binary.BigEndian.PutUint64(last, binary.BigEndian.Uint64(last)^k.sealed)
	k.sealed++
	return aead, nonce
}

func (r *rawTLS) write(kind byte, content []byte) error {
	aead, nonce := r.next(&r.ours)
	inner := append(content[:len(content):len(content)], kind)
	head := binary.BigEndian.AppendUint16([]byte{recordData, 3, 3}, uint16(len(inner)+aead.Overhead())) // short records
	_, err := r.conn.Write(aead.Seal(head, nonce, inner, head))
	return err
}

// updateKey sends a KeyUpdate. Each changes the key of the sender.
func (r *rawTLS) updateKey() error {
	const keyUpdate = 24
	err := r.write(recordHandshake, []byte{keyUpdate, 0, 0, 1, 0})
	r.ours = trafficKey{secret: r.expand(r.ours.secret, "traffic upd", sha256.Size)}
	return err
}

// read returns the content of the next record.
func (r *rawTLS) read() (kind byte, content []byte, err error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r.conn, head); err != nil {
		return 0, nil, err
	}
	sealed := make([]byte, binary.BigEndian.Uint16(head[3:]))
	if _, err := io.ReadFull(r.conn, sealed); err != nil {
		return 0, nil, err
	}
	aead, nonce := r.next(&r.theirs)
	inner, err := aead.Open(nil, nonce, sealed, head)
	if err != nil {
		return 0, nil, err
	}
	return inner[len(inner)-1], inner[:len(inner)-1], nil
}

// A client may change its key, but a flood of KeyUpdates, which cost the server work and carry
// nothing, ends the connection.
func TestKeyUpdateFlood(t *testing.T) {
	t.Parallel()
	s, _ := secureSettings(t)
	i := start(t, s).AwaitReady()

	few := dialRawTLS(t, i.Address("WEIR_HTTPS_ADDR"))
	for range 8 {
		require.NoError(t, few.updateKey())
	}
	require.NoError(t, few.write(recordData, []byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")))
	kind, content, err := few.read()
	require.NoError(t, err)
	require.EqualValues(t, recordData, kind)
	require.True(t, strings.HasPrefix(string(content), "HTTP/1.1 200 "), "%q", content)

	flood := dialRawTLS(t, i.Address("WEIR_HTTPS_ADDR"))
	for range 1000 {
		if flood.updateKey() != nil {
			break // it is closed already
		}
	}
	require.NoError(t, flood.conn.SetReadDeadline(time.Now().Add(patience)))
	for err = nil; err == nil; { // an alert may come first
		_, _, err = flood.read()
	}
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the connection is still open")

	response, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}).Get(i.HTTPSURL() + "/healthz")
	require.NoError(t, err, "others are served")
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusOK, response.StatusCode)
}
