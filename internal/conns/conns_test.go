package conns

import (
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// door has a bound, its listener and the connections that it has accepted.
type door struct {
	t       *testing.T
	bound   *Bound
	inner   net.Listener
	accepts net.Listener
	evicted atomic.Int64
}

func newDoor(t *testing.T, most int) *door {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	d := &door{t: t, inner: inner}
	d.bound = New(most, func() { d.evicted.Add(1) })
	d.accepts = d.bound.Listen(inner)
	t.Cleanup(func() { _ = inner.Close() })
	return d
}

// open connects from an address, and returns both ends.
func (d *door) open(from string) (client, server net.Conn) {
	d.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	client, err := dialer.Dial("tcp", d.inner.Addr().String())
	require.NoError(d.t, err)
	server, err = d.accepts.Accept()
	require.NoError(d.t, err)
	d.t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
	return client, server
}

// isOpen reports whether the server has not closed a connection.
func (d *door) isOpen(client, server net.Conn) bool {
	d.t.Helper()
	_ = client.SetDeadline(time.Now().Add(time.Minute))
	if _, err := client.Write([]byte("x")); err != nil {
		return false
	}
	_, err := server.Read(make([]byte, 1))
	return err == nil
}

// Beyond the bound, a connection of the site with the most is closed, the one that was not read for
// the longest time, and others are accepted.
func TestLargestSiteLosesItsIdleConnections(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 4)
	busy, busyServer := d.open("127.0.0.1")
	idle, idleServer := d.open("127.0.0.2") // of the same site
	last, lastServer := d.open("127.0.0.1")
	require.True(t, d.isOpen(busy, busyServer))
	other, otherServer := d.open("127.0.1.1")
	require.Zero(t, d.evicted.Load())

	second, secondServer := d.open("127.0.1.1")
	require.EqualValues(t, 1, d.evicted.Load())
	require.False(t, d.isOpen(idle, idleServer), "idle for the longest time")
	for i, c := range [][2]net.Conn{{busy, busyServer}, {last, lastServer}, {other, otherServer}, {second, secondServer}} {
		require.True(t, d.isOpen(c[0], c[1]), i)
	}
	_ = idleServer.Close() // its reader ends; it does not count twice
	require.Equal(t, 4, d.bound.Open())
	health, healthServer := d.open("127.0.2.1")
	require.True(t, d.isOpen(health, healthServer), "a new client is accepted")
	require.Equal(t, 4, d.bound.Open())
}

// A connection that ends does not count.
func TestClosedConnectionsDoNotCount(t *testing.T) {
	t.Parallel()
	d := newDoor(t, 2)
	for range 10 {
		_, server := d.open("127.0.0.1")
		require.NoError(t, server.Close())
		require.Error(t, server.Close(), "the second time")
	}
	require.Zero(t, d.bound.Open())
	require.Zero(t, d.evicted.Load())
	require.Empty(t, d.bound.sites)
	require.Empty(t, d.bound.order)
}

// One client with very many connections closes its own only, from however many networks of its
// site.
func TestFloodOfConnections(t *testing.T) {
	t.Parallel()
	b := New(1000, func() {})
	kept := map[*conn]bool{}
	for i := range 100 {
		c := &conn{bound: b, network: siteOf(netip.AddrFrom4([4]byte{192, 0, byte(i), 1}))}
		require.Nil(t, b.add(c))
		kept[c] = true
	}
	for i := range 10_000 {
		address := netip.AddrFrom16([16]byte{0x20, 0x01, 0xd, 0xb8, 0, 1, byte(i >> 8), byte(i), 15: 1})
		victim := b.add(&conn{bound: b, network: siteOf(address)})
		require.Equal(t, i >= 900, victim != nil)
		require.False(t, kept[victim], "of another site")
	}
	require.Equal(t, 1000, b.Open())
	require.Len(t, b.sites, 101)
}

// from returns a connection of a site that has no other.
func (b *Bound) from(site int) *conn {
	return &conn{bound: b, network: siteOf(netip.AddrFrom4([4]byte{10, byte(site >> 8), byte(site), 1}))}
}

// Among sites of the same size, the one loses a connection that was idle for the longest time. So a
// new client has as many accepts as there are others, however many sites have one connection each.
// Before, it lost its connection when the second one after it came.
func TestNewClientsAmongManySites(t *testing.T) {
	t.Parallel()
	const most = 100
	b := New(most, func() {})
	sites := 0
	next := func() (c, victim *conn) {
		c = b.from(sites)
		sites++
		return c, b.add(c)
	}
	for range most {
		_, victim := next()
		require.Nil(t, victim)
	}
	for range 50 {
		c, _ := next()
		survived := 0
		for ; !c.left && survived < 2*most; survived++ {
			next()
		}
		require.Equal(t, most, survived)
	}
}

// A site whose connection is in use keeps it, also if very many sites are.
func TestSitesInUseKeepTheirConnections(t *testing.T) {
	t.Parallel()
	const most, busy = 100, looked + 10
	b := New(most, func() {})
	var used []*conn
	for i := range most {
		c := b.from(i)
		require.Nil(t, b.add(c))
		if i < busy {
			used = append(used, c)
		}
	}
	for i := range 10 * most {
		for _, c := range used {
			c.note()
		}
		b.add(b.from(most + i))
	}
	left := 0
	for _, c := range used {
		if c.left {
			left++
		}
	}
	require.LessOrEqual(t, left, 1, "of those that were compared first, one may go")
}
