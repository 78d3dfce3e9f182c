package budget

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"weir/internal/limit"
)

const (
	lookEvery = time.Second
	lookGap   = 100 * time.Millisecond
	// lookTogether is the maximum number of tenants whose hashes are read in one round trip.
	lookTogether = 128
)

var recordsScript = redis.NewScript(recordsText)

// Run stores and reads the bytes of tenants until ctx ends.
func (b *Budget) Run(ctx context.Context) { b.loop.Run(ctx, func() { b.look(ctx) }) }

// look looks at the hashes of tenants that are due.
func (b *Budget) look(ctx context.Context) {
	now := b.o.Now()
	var due []*tenant
	b.tenants.Range(func(id limit.TenantID, t *tenant) bool {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.idle(now) {
			t.gone = true
			b.tenants.Delete(id)
		} else if t.due(now) {
			t.soon = false
			due = append(due, t)
		}
		return true
	})
	for len(due) > 0 && ctx.Err() == nil {
		n := min(len(due), lookTogether)
		if !b.lookAt(ctx, now, due[:n]) {
			return // Redis is unavailable
		}
		due = due[n:]
	}
}

// due reports whether it is time to look at the tenant's hash.
func (t *tenant) due(now time.Time) bool {
	return t.soon || now.Sub(t.looked) >= lookEvery && (len(t.own) > 0 || now.Sub(t.used) < longest)
}

// idle reports whether the tenant has no records, and has had none for a while.
func (t *tenant) idle(now time.Time) bool {
	return t.reserved == 0 && now.Sub(t.used) >= forgetAfter && !t.looked.IsZero()
}

// lookAt looks at the hashes of some tenants in one round trip, and in one more for each tenant if
// Redis does not know the script. It returns false if Redis is unavailable.
func (b *Budget) lookAt(ctx context.Context, now time.Time, due []*tenant) (available bool) {
	ctx, cancel := context.WithTimeout(ctx, lookEvery)
	defer cancel()
	pipe := b.o.Client.Pipeline()
	keys, args := make([]string, len(due)), make([][]any, len(due))
	replies := make([]*redis.Cmd, len(due))
	for i, t := range due {
		keys[i], args[i] = b.key(t.id), b.args(t, now)
		replies[i] = recordsScript.EvalSha(ctx, pipe, keys[i:i+1], args[i]...)
	}
	_, _ = pipe.Exec(ctx) // each reply has its own error
	for i, t := range due {
		reply := replies[i]
		if redis.HasErrorPrefix(reply.Err(), "NOSCRIPT") {
			reply = recordsScript.Eval(ctx, b.o.Client, keys[i:i+1], args[i]...)
		}
		if others, err := reply.Int64(); err == nil {
			b.grant(t, now, others)
			available = true
		}
	}
	return available
}

// key returns the key of a tenant's hash.
func (b *Budget) key(id limit.TenantID) string { return b.o.Prefix(id) + "r" + string(id[:]) }

// args returns the arguments of the script.
func (b *Budget) args(t *tenant, now time.Time) []any {
	at := b.periodOf(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clean(at)
	args := append(make([]any, 0, 2+2*len(t.own)), b.name, (longest + 2*period).Milliseconds())
	for expires, bytes := range t.own {
		end := b.begun.Add(time.Duration(expires+1) * period)
		args = append(args, max(end.Sub(now).Milliseconds(), 1), bytes)
	}
	return args
}

// grant sets how many bytes this instance may have alive, by those of the others and by the memory
// of Redis.
func (b *Budget) grant(t *tenant, now time.Time, others int64) {
	bound, known := b.o.Bound(t.id)
	n := int64(b.o.Instances())
	at := b.periodOf(now)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.clean(at)
	if known {
		t.bound = b.boundOr(bound)
	}
	t.looked, t.others = now, others
	most := min(t.bound, b.level.Load())
	t.granted = max(most-others-t.alive, 0)
	if n > 1 { // others may have written some since, and will
		t.granted /= 2 * n
	}
	t.granted = min(t.granted, b.share())
	// A record that was refused may be larger than such a part, and would always be refused. Up to
	// half of the bound, the parts of the others leave room for it.
	if others+t.alive+t.wanted <= most/2 {
		t.granted = max(t.granted, t.wanted)
	}
	t.wanted = 0
	t.most = min(t.alive+t.granted, t.bound)
}
