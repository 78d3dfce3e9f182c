// Package conns bounds the open connections of a process, so that clients that open very many
// cannot use up its files and its memory. When a connection beyond the bound comes, one of the site
// with the most connections is closed (origin.Networks), the idle ones first. Of several such
// sites, it is the one that was idle for the longest time. A new client is therefore always
// accepted, and a health check, too.
//
// Example: the bound is 4. Site a has 3 connections, and b has 1. Another one of b comes, and the
// one of a is closed on which nothing was read for the longest time. If 4 sites have one connection
// each and a fifth comes, the site from which nothing was read for the longest time loses its own.
package conns

import (
	"container/heap"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"

	"weir/internal/origin"
)

// looked is how many connections of a site are compared to find an idle one, and how many sites of
// the same size. It bounds the time, however many there are.
const looked = 32

// Bound is a number of connections, of all listeners together. Use New.
type Bound struct {
	most    int
	evicted func()        // is told of each connection that is closed because of the bound
	now     atomic.Uint64 // counts accepted connections: the time by which they are idle

	mu    sync.Mutex
	open  int
	sites map[netip.Prefix]*site
	order bySizeAndAge
}

// site has the connections of one site.
type site struct {
	network netip.Prefix
	conns   map[*conn]struct{}
	last    uint64 // when a connection was accepted, or something read, as far as the order knows
	at      int    // in order
}

// New returns a bound of most connections. evicted is called for each one that is closed.
func New(most int, evicted func()) *Bound {
	return &Bound{most: most, evicted: evicted, sites: map[netip.Prefix]*site{}}
}

// Listen returns a listener whose connections count for the bound until they are closed.
func (b *Bound) Listen(inner net.Listener) net.Listener { return &listener{inner, b} }

// Open returns how many connections are open.
func (b *Bound) Open() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.open
}

type listener struct {
	net.Listener
	bound *Bound
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	inner, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tcp, ok := inner.(*net.TCPConn)
	if !ok { // the listeners of the process are all TCP
		return inner, nil
	}
	c := &conn{TCPConn: tcp, bound: l.bound}
	if from, ok := tcp.RemoteAddr().(*net.TCPAddr); ok {
		c.network = siteOf(from.AddrPort().Addr())
	}
	if victim := l.bound.add(c); victim != nil {
		l.bound.evicted()
		_ = victim.TCPConn.Close() // it has left the bound; its reader ends with an error
	}
	return c, nil
}

// siteOf returns the widest network that an address is in; the zero value without an address.
func siteOf(address netip.Addr) netip.Prefix {
	return origin.Within(address)[2]
}

// conn is a connection that counts.
type conn struct {
	*net.TCPConn
	bound   *Bound
	network netip.Prefix
	read    atomic.Uint64 // when something was last read
	left    bool          // it does not count any more; the lock of the bound guards it
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.TCPConn.Read(p)
	if n > 0 {
		c.note()
	}
	return n, err
}

// note notes that something was read.
func (c *conn) note() {
	if now := c.bound.now.Load(); c.read.Load() != now {
		c.read.Store(now)
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.bound.mu.Lock()
	c.bound.remove(c)
	c.bound.mu.Unlock()
	return c.TCPConn.Close()
}

// add counts a connection. It returns the one that must be closed for it, which does not count any
// more; nil: none.
func (b *Bound) add(c *conn) (victim *conn) {
	now := b.now.Add(1)
	c.read.Store(now)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.open >= b.most {
		victim = b.idle()
		b.remove(victim)
	}
	s := b.sites[c.network]
	if s == nil {
		s = &site{network: c.network, conns: map[*conn]struct{}{}}
		b.sites[c.network] = s
		heap.Push(&b.order, s)
	}
	s.conns[c] = struct{}{}
	s.last = max(s.last, now)
	b.open++
	heap.Fix(&b.order, s.at)
	return victim
}

// remove ends that a connection counts. The caller holds the lock.
func (b *Bound) remove(c *conn) {
	if c == nil || c.left {
		return
	}
	c.left = true
	b.open--
	s := b.sites[c.network]
	delete(s.conns, c)
	if len(s.conns) == 0 {
		delete(b.sites, c.network)
		heap.Remove(&b.order, s.at)
		return
	}
	heap.Fix(&b.order, s.at)
}

// idle returns the connection that was not read for the longest time, among a few of the largest
// site. Of several, that is the one that was idle for the longest time. The caller holds the lock.
//
// Reading takes no lock, so the order learns of it only here: while the first site was read since
// it was put there, it moves back.
func (b *Bound) idle() *conn {
	if len(b.order) == 0 {
		return nil
	}
	for range looked {
		s := b.order[0]
		_, last := s.compare()
		if last <= s.last {
			break
		}
		s.last = last
		heap.Fix(&b.order, 0)
	}
	idle, _ := b.order[0].compare()
	return idle
}

// compare compares a few connections of a site. It returns the one that was not read for the
// longest time, and when the one that was read last was. The caller holds the lock.
func (s *site) compare() (idle *conn, last uint64) {
	n := 0
	least := uint64(0)
	for c := range s.conns { // in random order
		read := c.read.Load()
		if idle == nil || read < least {
			idle, least = c, read
		}
		last = max(last, read)
		if n++; n == looked {
			break
		}
	}
	return idle, last
}

// bySizeAndAge is a heap of sites, the one with the most connections first, and of several the one
// that was idle for the longest time.
type bySizeAndAge []*site

func (h bySizeAndAge) Len() int { return len(h) }

func (h bySizeAndAge) Less(i, j int) bool {
	if a, b := len(h[i].conns), len(h[j].conns); a != b {
		return a > b
	}
	return h[i].last < h[j].last
}

func (h bySizeAndAge) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *bySizeAndAge) Push(x any) {
	s := x.(*site)
	s.at = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *bySizeAndAge) Pop() any {
	last := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	return last
}
