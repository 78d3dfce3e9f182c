package mail

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gate is a mail server that answers for a letter only when the test says so.
type gate struct {
	began  chan *Letter // a letter whose sending began
	closed chan struct{}
	mu     sync.Mutex
	ends   map[string]chan error // by recipient
}

func newGate() *gate {
	return &gate{began: make(chan *Letter, 10_000), closed: make(chan struct{}), ends: map[string]chan error{}}
}

func (g *gate) end(to string) chan error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ends[to] == nil {
		g.ends[to] = make(chan error, 1000)
	}
	return g.ends[to]
}

func (g *gate) send(ctx context.Context, l *Letter) error {
	g.began <- l
	select {
	case err := <-g.end(l.To):
		return err
	case <-g.closed:
		return &unfit{errors.New("the test has ended")}
	case <-ctx.Done():
		return ctx.Err()
	}
}

// gated starts a post whose letters pass a gate.
func gated(t *testing.T, o Options) (*Post, *gate) {
	t.Helper()
	g := newGate()
	o.Box, o.Logger = &Box{}, slog.New(slog.DiscardHandler)
	p, err := NewPost(o)
	require.NoError(t, err)
	p.by = g
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { p.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		close(g.closed) // what is left is refused at once
		all.Wait()
	})
	return p, g
}

// A flood of one source neither delays nor displaces the letters of another one, although the mail
// server answers for no letter of the flood.
func TestFloodOfMails(t *testing.T) {
	floods := map[string]func(n int) Source{
		"one tenant":            func(int) Source { return ByTenant("flood") },
		"many tenants":          func(n int) Source { return ByTenant(string(rune(1000 + n))) },
		"sign-ups":              func(n int) Source { return BySignUp(string(rune(1000 + n))) },
		"forgotten passwords":   func(n int) Source { return ByForgetful(string(rune(1000 + n))) },
		"one person":            func(int) Source { return ByPerson("flood") },
		"one network, sign-ups": func(int) Source { return BySignUp("flood") },
	}
	others := map[string]Source{
		"person": ByPerson("ann"), "password": ByForgetful("192.0.2.1"), "signup": BySignUp("192.0.2.1"), "tenant": ByTenant("acme"),
	}
	// A flood of many sources of one kind may delay another source of that kind, by one turn.
	same := map[string]string{"many tenants": "tenant", "sign-ups": "signup", "forgotten passwords": "password", "one network, sign-ups": "signup"}
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			p, g := gated(t, Options{})
			refused := 0
			for n := range 5000 {
				p.Send(flood(n), Letter{To: "flood"}, func(err error) {
					if errors.Is(err, ErrFull) {
						refused++
					}
				})
			}
			require.Greater(t, refused, 3000, "its share is bounded")
			for other, source := range others {
				if same[name] == other {
					continue
				}
				to, done := other+"@example.com", make(chan error, 1)
				g.end(to) <- nil
				p.Send(source, Letter{To: to}, func(err error) { done <- err })
				require.NoError(t, <-done, "%s is sent while no letter of the flood is", other)
			}
		})
	}
}

// Holders of a lane take turns: a letter waits for one letter of each other holder, not for all.
func TestTurnsOfMails(t *testing.T) {
	g := newGate()
	p, err := NewPost(Options{Box: &Box{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	p.by = g
	var all sync.WaitGroup
	for range 10 {
		p.Send(BySignUp("flood"), Letter{To: "flood"}, nil)
	}
	for range 2 {
		p.Send(BySignUp("other"), Letter{To: "other"}, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	all.Go(func() { p.Run(ctx) })
	var order []string
	for range 12 {
		l := <-g.began
		order = append(order, l.To)
		g.end(l.To) <- nil
	}
	cancel()
	all.Wait()
	require.Equal(t, "flood other flood other flood", strings.Join(order[:5], " "))
}

// A tenant whose letters take all of their time, because the mail server does not answer for their
// addresses, gets one worker. Others of its lane continue with the other one.
func TestSlowLetters(t *testing.T) {
	p, g := gated(t, Options{sendTime: time.Millisecond, retryAfter: []time.Duration{0, time.Hour}})
	for _, tenant := range []string{"slow", "slower"} {
		p.Send(ByTenant(tenant), Letter{To: tenant}, nil)
	}
	lane := p.lanes[laneTenants]
	require.Eventually(t, func() bool { // both have used two attempts, and wait for an hour
		lane.mu.Lock()
		defer lane.mu.Unlock()
		return len(lane.slow) == 2 && len(lane.sending)+len(lane.waiting) == 0 && len(g.began) == 4
	}, time.Minute, time.Millisecond)
	// No worker runs here: the test takes turns itself.
	alone := newLane(laneTenants)
	alone.slow["slow"], alone.slow["slower"] = true, true
	for _, tenant := range []string{"slow", "slower", "quick"} {
		parcel := &parcel{holder: tenant}
		require.True(t, alone.enter(parcel))
		alone.add(parcel)
	}
	require.Equal(t, "slow", alone.take().holder)
	require.Equal(t, "quick", alone.take().holder, "the second slow one leaves this worker to others")
	require.Nil(t, alone.take())
	alone.sent("slow", false)
	require.Equal(t, "slower", alone.take().holder)
}

// When the process stops while the mail server does not answer, letters of one lane do not use up
// the last seconds of another one.
func TestStopTriesAllLanes(t *testing.T) {
	g := newGate()
	p, err := NewPost(Options{Box: &Box{}, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	p.by = g
	for range 3 {
		p.Send(ByTenant("acme"), Letter{To: "acme"}, nil)
	}
	sent := make(chan error, 1)
	p.Send(ByPerson("ann"), Letter{To: "ann"}, func(err error) { sent <- err })
	g.end("ann") <- nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var all sync.WaitGroup
	all.Go(func() { p.Run(ctx) })
	require.NoError(t, <-sent, "while the tenant's letter is being tried")
	for range 3 {
		g.end("acme") <- nil
	}
	all.Wait()
	require.Zero(t, p.Waiting())
}

// Refusals are logged once a minute, because unknown clients can cause any number of them.
func TestRefusalsInTheLog(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	log := &lockedBuffer{}
	p, err := NewPost(Options{Box: &Box{}, Logger: slog.New(slog.NewJSONHandler(log, nil)), Now: func() time.Time { return now }})
	require.NoError(t, err)
	for range 1000 {
		p.Send(BySignUp("flood"), Letter{Kind: "signup"}, nil)
	}
	require.Equal(t, 1, strings.Count(log.String(), "fill their share"))
	now = now.Add(time.Minute)
	p.Send(BySignUp("flood"), Letter{Kind: "signup"}, nil)
	require.Equal(t, 2, strings.Count(log.String(), "fill their share"))
}
