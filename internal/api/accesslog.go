package api

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

// accessBudget bounds the lines that the log gets about requests that are refused, or that nobody
// has signed with a key: anybody can send those, and a flood of them is not to fill a disk or to
// push everything else out of a log. Each second the first ones are written, and then one line that
// tells how many were not.
type accessBudget struct {
	logger *slog.Logger
	mu     sync.Mutex
	open   map[uuid.UUID]int // requests in the second that runs, by tenant; uuid.Nil is everybody without a key
}

const (
	accessLines  = 20 // a second, of each tenant and of everybody without a key
	accessWindow = time.Second
)

func newAccessBudget(logger *slog.Logger) *accessBudget {
	return &accessBudget{logger: logger, open: map[uuid.UUID]int{}}
}

// take reports whether a line may be written about this request.
func (b *accessBudget) take(q *request) bool {
	if q.authed && q.status < http.StatusBadRequest {
		return true
	}
	var who uuid.UUID
	if q.authed {
		who = q.actor.TenantID()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.open[who] + 1
	b.open[who] = n
	if n == 1 {
		time.AfterFunc(accessWindow, func() { b.end(who) })
	}
	return n <= accessLines
}

// end closes a second, and says what it left out.
func (b *accessBudget) end(who uuid.UUID) {
	b.mu.Lock()
	n := b.open[who]
	delete(b.open, who)
	b.mu.Unlock()
	if n <= accessLines {
		return
	}
	attrs := []any{slog.Int("requests", n-accessLines)}
	if who != uuid.Nil {
		attrs = append(attrs, slog.String("tenant_id", who.String()))
	}
	b.logger.Info("requests not logged", attrs...)
}
