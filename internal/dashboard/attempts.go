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

// The limits for failed sign-ins, as rules of the engine. The limit for one account from all
// addresses refills gradually: an unknown client can slow down the owner, but not lock them out.
var attemptRules = [...]limit.Rule{
	{Slug: "account-address", Algorithm: limit.SlidingWindowLog, Limit: 10, Window: limit.Window{Duration: limit.Duration{MS: 15 * 60_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 50, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "account", Algorithm: limit.TokenBucket, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

// The limits for mails that anybody can request, so that another person's mailbox cannot be filled.
var askRules = [...]limit.Rule{
	{Slug: "account-address", Algorithm: limit.SlidingWindowLog, Limit: 3, Window: limit.Window{Duration: limit.Duration{MS: 15 * 60_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 20, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "account", Algorithm: limit.TokenBucket, Limit: 10, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

// The limits for invitations of a tenant's members, so that nobody can fill mailboxes: per address
// and tenant, per address, and per tenant.
var inviteRules = [...]limit.Rule{
	{Slug: "tenant-address", Algorithm: limit.SlidingWindowLog, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "tenant", Algorithm: limit.TokenBucket, Limit: 200, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

// attempts counts failed sign-ins in memory, per instance, so that it also works while Redis is
// unavailable. A running attempt counts as failed until its result is known, so concurrent attempts
// allow no more guesses than sequential ones.
type attempts struct {
	rules  [len(attemptRules)]limit.Rule
	engine *engine.Memory
	mu     sync.Mutex
	trying map[string]int64 // running attempts, by counter
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

// attempt is an allowed attempt. Exactly one of failed, succeeded and undecided must be called.
type attempt struct {
	of   *attempts
	keys [len(attemptRules)]string
}

// begin allows an attempt, or returns how long to wait.
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
		return nil, max(wait, time.Second) // a shorter wait: too many attempts are running now
	}
	for _, key := range try.keys {
		a.trying[key]++
	}
	return try, 0
}

func (a *attempts) counterCall(rule int, key string, cost int64) engine.Call {
	return engine.Call{Cost: cost, Counters: []engine.Counter{{Key: key, Numbers: a.rules[rule].Numbers()}}}
}

// take counts one attempt, or returns how long to wait.
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

// succeeded ends an attempt with the right password: the person's own failures are reset.
func (t *attempt) succeeded() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	_ = t.of.engine.Reset(context.Background(), engine.Counter{Key: t.keys[0]}) // an engine in memory does not fail
	t.ended()
}

// undecided ends an attempt without a result.
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

// accountKey returns a short key for a text of any length.
func accountKey(email string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(email)))
	return hex.EncodeToString(sum[:16])
}

// addressOf returns the address of a connection; for IPv6 the network of 64 bits, which belongs to
// one customer.
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
