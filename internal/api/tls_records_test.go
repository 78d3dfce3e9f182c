package api

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"net/http/httptest"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"
)

// testRecord is a TLS record with n bytes behind its header.
func testRecord(n int) []byte {
	return append([]byte{0x17, 3, 3, byte(n >> 8), byte(n)}, make([]byte, n)...)
}

// The lengths of records are followed however the bytes arrive.
func TestTLSRecordsAreCounted(t *testing.T) {
	t.Parallel()
	sent := bytes.Join([][]byte{testRecord(22), testRecord(0), testRecord(300), testRecord(1 << 14), testRecord(1)}, nil)
	for name, reader := range map[string]io.Reader{
		"together": bytes.NewReader(sent), "in bytes": iotest.OneByteReader(bytes.NewReader(sent)), "in halves": iotest.HalfReader(bytes.NewReader(sent)),
	} {
		var r tlsRecords
		for b := make([]byte, 4096); ; {
			n, err := reader.Read(b)
			if r.arrived(b[:n]); err == io.EOF {
				break
			}
		}
		require.Equal(t, 5, r.complete, name)
		require.Zero(t, r.have, name)
	}
}

// Records without data count when there are many of them since the last time, whatever comes in
// between. Data that is read in parts does not make up for later ones.
func TestRecordsWithoutDataCount(t *testing.T) {
	t.Parallel()
	var r tlsRecords
	counted := 0
	for range 10 {
		for range 16 {
			r.arrived(testRecord(22)) // a request for a new key
		}
		r.arrived(testRecord(18))
		r.reads++
		counted += r.empty()
	}
	require.Equal(t, 160, counted)
	for range 100 {
		r.arrived(testRecord(16 << 10))
		r.reads += 4
		require.Zero(t, r.empty())
	}
	for range freeEmptyRecords {
		r.arrived(testRecord(22))
	}
	require.Zero(t, r.empty())
	r.arrived(testRecord(22))
	require.Equal(t, freeEmptyRecords+1, r.empty())
}

// Ordinary clients send no records without data, in whatever parts they write and the server reads.
func TestOrdinaryRecordsDoNotCount(t *testing.T) {
	t.Parallel()
	issuer := httptest.NewTLSServer(nil)
	defer issuer.Close()
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		client, server := net.Pipe()
		below := newHandshakeConn(server, newHandshakeRounds(1), time.Minute)
		sent := make(chan error, 1)
		go func() {
			c := tls.Client(client, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version})
			defer c.Close()
			for i := range 300 {
				if _, err := c.Write(make([]byte, 1+i*i%20_000)); err != nil {
					sent <- err
					return
				}
			}
			sent <- nil
		}()
		secure, err := serverHandshake(below, &tls.Config{Certificates: issuer.TLS.Certificates})
		require.NoError(t, err)
		conn := &secureConn{secure, below}
		for b := make([]byte, 700); err == nil; {
			_, err = conn.Read(b)
			require.LessOrEqual(t, below.records.without, 1, "the end of the connection is one")
		}
		require.ErrorIs(t, err, io.EOF)
		require.NoError(t, <-sent)
	}
}
