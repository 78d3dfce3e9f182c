package api

import (
	"errors"
	"hash/maphash"
	"net"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/time/rate"

	"weir/internal/origin"
)

// A body can arrive in very many parts: chunks of HTTP/1.1, or frames of HTTP/2. A part of a few
// bytes takes half a microsecond to read, also one of a body that nobody wants. So 16 connections
// of a client without an API key, with bodies of 30 000 parts each, would take all processors.
// Parts are therefore read at a rate that takes some hundredths of each processor. Parts of a KiB
// are not counted: they take less than their bytes.
//
// A site has half of the rate, so that one that sends very many waits for itself, and others do not
// wait for it.

const (
	// longPart is how many bytes of a connection have a part that is not counted.
	longPart = 1 << 10
	// freeParts are not counted either: a read takes as long.
	freeParts = 8
	// partsPerSecond is how many parts are read in a second, for each processor. A client that
	// sends each row of a table in a part of its own needs more time for that.
	partsPerSecond = 100_000
	// partPatience is how long a connection waits for its parts at most.
	partPatience = 2 * time.Second
	// partSites is the number of rates for sites. Two share one by chance.
	partSites = 1024
)

// parts are those of all connections of the process.
var parts = newPartRate(runtime.GOMAXPROCS(0))

type partRate struct {
	all   *rate.Limiter
	sites [partSites]*rate.Limiter
	seed  maphash.Seed
}

func newPartRate(processors int) *partRate {
	perSecond := partsPerSecond * processors
	p := &partRate{all: rate.NewLimiter(rate.Limit(perSecond), perSecond/10), seed: maphash.MakeSeed()}
	for i := range p.sites {
		p.sites[i] = rate.NewLimiter(rate.Limit(perSecond/2), perSecond/20)
	}
	return p
}

var errManyParts = errors.New("a body in very many parts: its site sends more than can be read")

// wait waits until a client may send so many parts. It errs if that takes too long.
func (p *partRate) wait(client net.Addr, n int) error {
	if n <= freeParts {
		return nil
	}
	host, _, err := net.SplitHostPort(client.String())
	if err != nil {
		host = client.String()
	}
	return p.waitFor(host, n)
}

func (p *partRate) waitFor(host string, n int) error {
	site := p.sites[maphash.String(p.seed, origin.Site(host))%partSites]
	for _, limiter := range []*rate.Limiter{site, p.all} {
		r := limiter.ReserveN(time.Now(), min(n, limiter.Burst()))
		delay := r.Delay()
		if delay > partPatience {
			r.Cancel()
			return errManyParts
		}
		time.Sleep(delay)
	}
	return nil
}

// waitHTTP2 waits until a connection may continue. It does not end, because a proxy may have
// requests of others on it.
func (p *partRate) waitHTTP2(client netip.Addr, n int) {
	if p.waitFor(client.String(), n) != nil {
		time.Sleep(partPatience)
	}
}
