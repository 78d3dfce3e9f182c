package api

import (
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
)

// accessBudget limits the log lines about requests that are refused or have no valid key. Anybody
// can send such requests, and a flood of them must not fill a disk or displace other lines. In each
// second, the first ones are written, and then one line with the number of the others.
type accessBudget struct {
	logger *slog.Logger
	mu     sync.Mutex
	open   map[uuid.UUID]int // requests in the current second, by tenant; uuid.Nil is all requests without a key
}

const (
	accessLines  = 20 // per second, for each tenant and for all requests without a key
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

// end ends a second, and logs the number of requests without a line.
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
