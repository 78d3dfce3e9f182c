package api

import (
	"context"
	"crypto"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// slowSigner is a key whose signatures wait until the test permits them.
type slowSigner struct {
	crypto.Signer
	permit chan struct{}
	once   sync.Once

	begun, running, most atomic.Int64
}

// release permits all signatures from now on.
func (s *slowSigner) release() { s.once.Do(func() { close(s.permit) }) }

func (s *slowSigner) Sign(random io.Reader, digest []byte, options crypto.SignerOpts) ([]byte, error) {
	n := s.running.Add(1)
	defer s.running.Add(-1)
	s.begun.Add(1)
	for most := s.most.Load(); n > most && !s.most.CompareAndSwap(most, n); most = s.most.Load() {
	}
	<-s.permit
	return s.Signer.Sign(random, digest, options)
}

// shaking is a listener whose handshakes have a number of places.
type shaking struct {
	t      *testing.T
	rounds *handshakeRounds
	signer *slowSigner
	trust  *tls.Config
	addr   string
	second atomic.Int64   // handshakes of 127.0.0.2 that have had a place
	all    sync.WaitGroup // clients
}

// overHandshakes runs a test with handshakes for the lane and for gRPC.
func overHandshakes(t *testing.T, places int, test func(t *testing.T, s *shaking)) {
	for name, serve := range map[string]func(t *testing.T, s *shaking, config *tls.Config, listener net.Listener){
		"lane": func(t *testing.T, s *shaking, config *tls.Config, listener net.Listener) {
			lane := NewLane()
			lane.handshakes = s.rounds
			server := &http.Server{Handler: http.NotFoundHandler(), TLSConfig: PrepareTLS(config), ErrorLog: log.New(io.Discard, "", 0)}
			serveLane(t, lane, server, listener)
		},
		"gRPC": func(t *testing.T, s *shaking, config *tls.Config, listener net.Listener) {
			g := NewGRPC(config)
			g.handshakes = s.rounds
			ended := make(chan error, 1)
			go func() { ended <- g.Serve(listener) }()
			t.Cleanup(func() {
				now, cancel := context.WithCancel(context.Background())
				cancel()
				_ = g.Shutdown(now) // closes connections of the test
				require.NoError(t, <-ended)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			issuer := httptest.NewTLSServer(nil) // has a certificate, and a client that trusts it
			t.Cleanup(issuer.Close)
			certificate := issuer.TLS.Certificates[0]
			s := &shaking{t: t, rounds: newHandshakeRounds(places), trust: clientTLS(issuer)}
			s.trust.NextProtos = []string{"h2"}
			s.signer = &slowSigner{Signer: certificate.PrivateKey.(crypto.Signer), permit: make(chan struct{})}
			certificate.PrivateKey = s.signer
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			s.addr = listener.Addr().String()
			serve(t, s, &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if hello.Conn.RemoteAddr().(*net.TCPAddr).IP.Equal(net.IPv4(127, 0, 0, 2)) {
					s.second.Add(1)
				}
				return &certificate, nil
			}}, listener)
			t.Cleanup(s.all.Wait)
			t.Cleanup(s.signer.release)
			test(t, s)
		})
	}
}

// dial connects from an address.
func (s *shaking) dial(from string) net.Conn {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", s.addr)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// shake makes the handshake of a client, and sends its outcome after the first bytes of the server.
func (s *shaking) shake(conn net.Conn) <-chan error {
	done := make(chan error, 1)
	s.all.Go(func() {
		client := tls.Client(conn, s.trust)
		err := client.Handshake()
		if err == nil { // then the server has processed all messages
			_, err = client.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
		}
		if err == nil {
			_, err = client.Read(make([]byte, 1))
		}
		done <- err
	})
	return done
}

// busy waits until n handshakes compute or wait for a place.
func (s *shaking) busy(n int) {
	for int(s.signer.running.Load())+s.rounds.Waiting() != n {
		runtime.Gosched()
	}
}

// Handshakes need no key, and each one makes the server sign. No more compute at once than there
// are places, and a client gets one although another network has very many waiting.
func TestHandshakesTakeTurns(t *testing.T) {
	// The lowest number would also be that of a single processor.
	overHandshakes(t, 2, func(t *testing.T, s *shaking) {
		const flood = 100
		for range flood {
			s.shake(s.dial("127.0.0.1"))
		}
		s.busy(flood)
		done := s.shake(s.dial("127.0.0.2"))
		s.busy(flood + 1)
		require.EqualValues(t, 2, s.signer.most.Load())
		permitted := 0
		for ; s.second.Load() == 0; permitted++ {
			begun := s.signer.begun.Load()
			s.signer.permit <- struct{}{}
			for s.signer.begun.Load() == begun { // until the next one has the place
				runtime.Gosched()
			}
		}
		require.LessOrEqual(t, permitted, 3, "it waits for few of the other network")
		s.signer.release()
		require.NoError(t, <-done)
		require.EqualValues(t, 2, s.signer.most.Load())
	})
}

// firstWrite keeps the first bytes that a client sends.
type firstWrite struct {
	net.Conn
	sent chan []byte
}

func (c *firstWrite) Write(b []byte) (int, error) {
	c.sent <- append([]byte(nil), b...)
	return 0, io.ErrClosedPipe
}

// A client that stops in the middle of a handshake has no place.
func TestHandshakesThatWaitHaveNoPlace(t *testing.T) {
	overHandshakes(t, 1, func(t *testing.T, s *shaking) {
		s.signer.release()
		s.dial("127.0.0.1") // sends nothing
		sent := make(chan []byte, 1)
		_ = tls.Client(&firstWrite{sent: sent}, s.trust).Handshake()
		hello := <-sent
		half, full := s.dial("127.0.0.1"), s.dial("127.0.0.1")
		_, err := half.Write(hello[:len(hello)/2])
		require.NoError(t, err)
		_, err = full.Write(hello)
		require.NoError(t, err)
		_, err = io.ReadFull(full, make([]byte, 100)) // reads no more, and never answers
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, <-s.shake(s.dial("127.0.0.1")))
		}
	})
}

// All messages of a client that arrive at once are processed with a place.
func TestHandshakeMessagesAtOnce(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	rounds := newHandshakeRounds(1)
	c := newHandshakeConn(server, rounds, time.Hour)
	go func() {
		_, _ = client.Write([]byte("messages"))
		_, _ = io.Copy(io.Discard, client)
	}()
	free := func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		got := make(chan error, 1)
		go func() { got <- rounds.Take(ctx, c.networks[:]...) }()
		for {
			select {
			case err := <-got:
				require.NoError(t, err)
				rounds.Leave()
				return true
			default:
			}
			if rounds.Waiting() > 0 {
				cancel()
				require.Error(t, <-got)
				return false
			}
			runtime.Gosched()
		}
	}
	require.NoError(t, c.shake(func() error {
		require.True(t, free())
		_, err := c.Read(make([]byte, 100))
		require.NoError(t, err)
		require.False(t, free())
		_, err = c.Write([]byte("answer"))
		require.False(t, free(), "the next message may be here already")
		return err
	}))
	require.True(t, free())
	_, err := c.Write([]byte("after it"))
	require.NoError(t, err)
	require.True(t, free())
}

// transfers counts the reads and writes of a connection that transfer something.
type transfers struct {
	net.Conn
	reads, writes atomic.Int64
}

func (c *transfers) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.reads.Add(int64(min(n, 1)))
	return n, err
}

func (c *transfers) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.writes.Add(int64(min(n, 1)))
	return n, err
}

// What arrives at once has one turn, although the TLS library reads a long hello in two parts. A
// place is taken after each transfer: of the hello, of the answer, and of the end.
func TestTurnsOfAHandshake(t *testing.T) {
	issuer := httptest.NewTLSServer(nil)
	defer issuer.Close()
	trust := clientTLS(issuer)
	server, client := net.Pipe()
	defer client.Close()
	sent := make(chan []byte, 1)
	_ = tls.Client(&firstWrite{sent: sent}, trust).Handshake()
	require.Greater(t, len(<-sent), 1024, "the hello is long")

	counted := &transfers{Conn: server}
	c := newHandshakeConn(counted, newHandshakeRounds(1), time.Hour)
	ended := make(chan error, 1)
	go func() {
		secure := tls.Client(client, trust)
		err := secure.Handshake()
		if err == nil {
			_, err = secure.Write([]byte("after it"))
		}
		ended <- err
	}()
	secure, err := serverHandshake(c, &tls.Config{Certificates: issuer.TLS.Certificates})
	require.NoError(t, err)
	require.Equal(t, [2]int64{2, 1}, [2]int64{counted.reads.Load(), counted.writes.Load()})
	got := make([]byte, 8)
	_, err = io.ReadFull(secure, got)
	require.NoError(t, err)
	require.Equal(t, "after it", string(got))
	require.NoError(t, <-ended)
}

// What was read ahead is read without another turn, with the same place, and without a place after
// the handshake. Then the connection keeps no memory for it.
func TestHandshakeReadsAhead(t *testing.T) {
	server, client := net.Pipe()
	defer client.Close()
	rounds := newHandshakeRounds(1)
	counted := &transfers{Conn: server}
	c := newHandshakeConn(counted, rounds, time.Hour)
	go func() {
		_, _ = client.Write([]byte("first,second,third"))
		_, _ = client.Write([]byte(",fourth"))
		_ = client.Close()
	}()
	part := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		n, err := c.Read(got)
		require.NoError(t, err)
		require.Equal(t, want, string(got[:n]))
		require.EqualValues(t, 1, counted.reads.Load())
	}
	require.NoError(t, c.shake(func() error {
		part("first,")
		require.True(t, c.placed)
		part("second,")
		require.True(t, c.placed)
		return nil
	}))
	require.False(t, c.placed)
	part("thi")
	require.NotNil(t, c.ahead)
	part("rd")
	require.Nil(t, c.ahead)
	rest, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Equal(t, ",fourth", string(rest))
	require.False(t, c.placed)
}

// A handshake that waits for a place ends with its connection, and after its time limit.
func TestHandshakesThatWaitEnd(t *testing.T) {
	rounds := newHandshakeRounds(1)
	require.NoError(t, rounds.Take(t.Context(), netip.Prefix{}))
	for name, limit := range map[string]time.Duration{"closed": time.Hour, "late": time.Nanosecond} {
		t.Run(name, func(t *testing.T) {
			server, client := net.Pipe()
			defer client.Close()
			c := newHandshakeConn(server, rounds, limit)
			go func() { _, _ = client.Write([]byte("message")) }()
			done := make(chan error, 1)
			go func() {
				done <- c.shake(func() error {
					_, err := c.Read(make([]byte, 100))
					return err
				})
			}()
			if limit == time.Hour {
				for rounds.Waiting() == 0 {
					runtime.Gosched()
				}
				require.NoError(t, c.Close())
			}
			require.Error(t, <-done)
			require.Zero(t, rounds.Waiting())
		})
	}
}

// Both listeners share the places, because they share the processors.
func TestListenersShareTheirHandshakes(t *testing.T) {
	require.Same(t, NewLane().handshakes, NewGRPC(nil).handshakes)
}
