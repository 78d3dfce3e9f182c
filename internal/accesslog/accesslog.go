// Package accesslog limits the log lines about requests that are refused, or that come from
// clients without a valid key or session. Anybody can send such requests, and a flood of them
// must not fill a disk or displace other lines. In each second, the first ones are written, and
// then one line with the number of the others. internal/api and internal/dashboard each have a
// Budget.
//
// Example: a client without a key sends 500 requests in a second. 20 of them have a line, and a
// line "requests not logged" says 480. The requests of acme that succeed have their lines
// meanwhile.
package accesslog

import (
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
)

// Lines is how many lines are written in each Window, for each tenant and for all clients together
// that are unknown.
const (
	Lines  = 20
	Window = time.Second
)

// Budget counts lines. Its methods may be called concurrently.
type Budget struct {
	logger *slog.Logger
	mu     sync.Mutex
	open   map[uuid.UUID]int // requests in the current second, by tenant; uuid.Nil is all unknown clients
}

// New returns a Budget that tells logger how many requests have no line.
func New(logger *slog.Logger) *Budget { return &Budget{logger: logger, open: map[uuid.UUID]int{}} }

// Take reports whether a line may be written about a request of a tenant, or of an unknown client
// (uuid.Nil). A request of a tenant that was not refused always has its line.
func (b *Budget) Take(tenant uuid.UUID, refused bool) bool {
	if tenant != uuid.Nil && !refused {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.open[tenant] + 1
	b.open[tenant] = n
	if n == 1 {
		time.AfterFunc(Window, func() { b.end(tenant) })
	}
	return n <= Lines
}

// end ends a second, and logs the number of requests without a line.
func (b *Budget) end(tenant uuid.UUID) {
	b.mu.Lock()
	n := b.open[tenant]
	delete(b.open, tenant)
	b.mu.Unlock()
	if n <= Lines {
		return
	}
	attrs := []any{slog.Int("requests", n-Lines)}
	if tenant != uuid.Nil {
		attrs = append(attrs, slog.String("tenant_id", tenant.String()))
	}
	b.logger.Info("requests not logged", attrs...)
}
