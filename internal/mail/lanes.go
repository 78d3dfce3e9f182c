package mail

import (
	"context"
	"errors"
	"sync"
	"time"

	"weir/internal/places"
)

// ErrFull means that too many letters of this source wait.
var ErrFull = errors.New("too many mails of this kind wait")

// Source is what caused a letter. It decides in which lane the letter waits, and with whose letters
// it shares that lane.
type Source struct {
	lane   int
	holder string
}

// ByPerson is for letters to people about their own login: the person has signed in, or uses a
// browser or an address from which they have signed in before.
func ByPerson(account string) Source { return Source{lanePeople, account} }

// ByForgetful is for password links that an unknown client requested. site is its widest network
// (origin.Site), because one client may have very many narrower ones.
func ByForgetful(site string) Source { return Source{laneForgotten, site} }

// BySignUp is for letters about a sign-up. site is that of the client, as for ByForgetful.
func BySignUp(site string) Source { return Source{laneSignUps, site} }

// ByTenant is for invitations and notices of a tenant.
func ByTenant(tenant string) Source { return Source{laneTenants, tenant} }

// The lanes, in the order in which they matter.
const (
	lanePeople = iota
	laneForgotten
	laneSignUps
	laneTenants
	lanes
)

// laneBounds are the bounds of each lane.
var laneBounds = [lanes]struct {
	name string // in metrics and logs
	// A holder may have a quarter of what is left of most letters, or least. With many holders
	// there are twice as many letters.
	most, least int
	workers     int // letters that are sent concurrently
}{
	lanePeople:    {"person", 200, 4, 2},
	laneForgotten: {"password", 200, 2, 2},
	laneSignUps:   {"signup", 200, 2, 1},
	laneTenants:   {"tenant", 500, 20, 2}, // a notice to all managers of a tenant fits
}

// lane has the letters of one kind of source. No lane waits for another one: each has its own
// places and its own workers. In a lane, holders take turns: one letter of a holder is sent at a
// time, and the holder then waits behind the others.
//
// Example: 100 invitations of tenant a wait, and b sends one. It is the next after the letter of a
// that is being sent.
type lane struct {
	name        string
	most, least int
	workers     int
	places      *places.Places[string] // one for each unfinished letter
	ready       chan struct{}          // signals that a letter may wait

	mu          sync.Mutex
	waiting     map[string][]*parcel // by holder
	turn        []string             // holders with waiting letters of which none is being sent
	sending     map[string]bool      // holders with a letter that is being sent; true: a slow one
	slow        map[string]bool      // holders whose last attempt took all of its time
	slowSending int
	unfinished  int
	refusedAt   time.Time // when a refusal was last logged
}

func newLane(kind int) *lane {
	b := laneBounds[kind]
	return &lane{
		name: b.name, most: b.most, least: b.least, workers: b.workers, places: places.New[string](0, 0), ready: make(chan struct{}, b.workers),
		waiting: map[string][]*parcel{}, sending: map[string]bool{}, slow: map[string]bool{},
	}
}

// enter takes a place for a new letter. It returns false if its holder has its share.
func (l *lane) enter(p *parcel) bool {
	leave, ok := l.places.TakeShare(p.holder, l.most, l.least)
	if !ok {
		return false
	}
	l.mu.Lock()
	l.unfinished++
	l.mu.Unlock()
	p.leave = func() {
		leave()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.unfinished--
		if l.places.Held(p.holder) == 0 {
			delete(l.slow, p.holder)
		}
	}
	return true
}

// add makes a letter wait for its turn.
func (l *lane) add(p *parcel) {
	l.mu.Lock()
	if _, busy := l.sending[p.holder]; !busy && len(l.waiting[p.holder]) == 0 {
		l.turn = append(l.turn, p.holder)
	}
	l.waiting[p.holder] = append(l.waiting[p.holder], p)
	l.mu.Unlock()
	l.signal()
}

func (l *lane) signal() {
	select {
	case l.ready <- struct{}{}:
	default: // all workers will look
	}
}

// take returns the letter whose turn it is, or nil. The caller must call sent. Slow holders leave
// one worker to the others.
func (l *lane) take() *parcel {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, holder := range l.turn {
		slow := l.slow[holder]
		if slow && l.slowSending >= max(1, l.workers-1) {
			continue
		}
		l.turn = append(l.turn[:i], l.turn[i+1:]...)
		p := l.waiting[holder][0]
		if rest := l.waiting[holder][1:]; len(rest) > 0 {
			l.waiting[holder] = rest
		} else {
			delete(l.waiting, holder)
		}
		l.sending[holder] = slow
		if slow {
			l.slowSending++
		}
		return p
	}
	return nil
}

// sent ends the turn of a holder. slow says that the attempt took all of its time.
func (l *lane) sent(holder string, slow bool) {
	l.mu.Lock()
	if l.sending[holder] {
		l.slowSending--
	}
	delete(l.sending, holder)
	if slow && l.places.Held(holder) > 0 {
		l.slow[holder] = true
	} else {
		delete(l.slow, holder)
	}
	if len(l.waiting[holder]) > 0 {
		l.turn = append(l.turn, holder)
	}
	l.mu.Unlock()
	l.signal()
}

// next waits for a letter, until ctx ends; then it returns nil.
func (l *lane) next(ctx context.Context) *parcel {
	for ctx.Err() == nil {
		if p := l.take(); p != nil {
			return p
		}
		select {
		case <-ctx.Done():
		case <-l.ready:
		}
	}
	return nil
}

// count returns how many letters are unfinished: those that wait, are being sent, or wait for
// another attempt.
func (l *lane) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unfinished
}

// mayLog reports whether a refusal is logged now. Anybody can cause refusals, so it is once a
// minute.
func (l *lane) mayLog(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.refusedAt.IsZero() && now.Sub(l.refusedAt) < time.Minute {
		return false
	}
	l.refusedAt = now
	return true
}
