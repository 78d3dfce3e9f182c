package dashboard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"weir/internal/engine"
	"weir/internal/limit"
)

// The failures that sign-in bears, as rules of the engine that we sell. What all addresses
// together may try on one account refills little by little: a stranger can slow its owner down,
// and not lock them out.
var attemptRules = [...]limit.Rule{
	{Slug: "account-address", Algorithm: limit.SlidingWindowLog, Limit: 10, Window: limit.Window{Duration: limit.Duration{MS: 15 * 60_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 50, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "account", Algorithm: limit.TokenBucket, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

// What may be asked for by mail, so that nobody can have another's mailbox filled.
var askRules = [...]limit.Rule{
	{Slug: "account-address", Algorithm: limit.SlidingWindowLog, Limit: 3, Window: limit.Window{Duration: limit.Duration{MS: 15 * 60_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 20, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "account", Algorithm: limit.TokenBucket, Limit: 10, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

// Invitations that one tenant's members may send, so that nobody can have the world's mailboxes
// filled: by address and tenant, by address, and by tenant.
var inviteRules = [...]limit.Rule{
	{Slug: "tenant-address", Algorithm: limit.SlidingWindowLog, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "tenant", Algorithm: limit.TokenBucket, Limit: 200, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

// attempts counts failures to sign in, on this instance, so that it holds with Redis down. An
// attempt that runs counts as if it had failed until it is known: many at once get no more
// guesses than one after another.
type attempts struct {
	rules  [len(attemptRules)]limit.Rule
	engine *engine.Memory
	mu     sync.Mutex
	trying map[string]int64 // attempts that run, by counter
}

func newAttempts(now func() time.Time) *attempts { return newAttemptsOf(attemptRules, now) }

func newAttemptsOf(rules [len(attemptRules)]limit.Rule, now func() time.Time) *attempts {
	const most = 100_000
	return &attempts{
		rules: rules,
		engine: engine.NewMemory(engine.MemoryOptions{
			Clock: func() int64 { return now().UnixMilli() }, MaxCounters: most, MaxPerTenant: most,
		}),
		trying: map[string]int64{},
	}
}

// attempt is one that was let through. Exactly one of its ends is to be called.
type attempt struct {
	of   *attempts
	keys [len(attemptRules)]string
}

// begin lets an attempt through, or says after how long to try again.
func (a *attempts) begin(email, address string) (*attempt, time.Duration) {
	account := accountKey(email)
	try := &attempt{of: a, keys: [...]string{"pair " + account + " " + address, "address " + address, "account " + account}}
	a.mu.Lock()
	defer a.mu.Unlock()
	for i, key := range try.keys {
		call := a.counterCall(i, key, 1+a.trying[key])
		call.DryRun = true
		a.engine.Evaluate(context.Background(), &call)
		if call.Outcome.Allowed {
			continue
		}
		wait := time.Duration(call.Outcome.Verdicts[0].RetryAfterMS) * time.Millisecond
		return nil, max(wait, time.Second) // less: those that run at this moment are too many
	}
	for _, key := range try.keys {
		a.trying[key]++
	}
	return try, 0
}

func (a *attempts) counterCall(rule int, key string, cost int64) engine.Call {
	return engine.Call{Cost: cost, Counters: []engine.Counter{{Key: key, Numbers: a.rules[rule].Numbers()}}}
}

// take counts one attempt of which each counts, or says after how long to try again.
func (a *attempts) take(account, address string) time.Duration {
	try, wait := a.begin(account, address)
	if try == nil {
		return wait
	}
	try.failed()
	return 0
}

// failed ends an attempt with a wrong password.
func (t *attempt) failed() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	for i, key := range t.keys {
		call := t.of.counterCall(i, key, 1)
		t.of.engine.Evaluate(context.Background(), &call)
	}
	t.ended()
}

// succeeded ends an attempt of somebody who knows the password: their own slips are forgotten.
func (t *attempt) succeeded() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	_ = t.of.engine.Reset(context.Background(), engine.Counter{Key: t.keys[0]}) // memory does not fail
	t.ended()
}

// undecided ends an attempt that came to no verdict.
func (t *attempt) undecided() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.ended()
}

func (t *attempt) ended() {
	for _, key := range t.keys {
		if t.of.trying[key]--; t.of.trying[key] == 0 {
			delete(t.of.trying, key)
		}
	}
}

// accountKey is short however long the text is that somebody sent.
func accountKey(email string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(email)))
	return hex.EncodeToString(sum[:16])
}

// addressOf returns the address of a connection; of IPv6 the network of 64 bits, which one
// customer has all of.
func addressOf(remote string) string {
	host := hostOf(remote)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	ip = ip.Unmap().WithZone("")
	if ip.Is4() {
		return ip.String()
	}
	network, _ := ip.Prefix(64) // of a valid IPv6 address
	return network.String()
}

// hostOf returns the address of a connection without its port.
func hostOf(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}
