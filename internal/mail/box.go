package mail

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// mostKept is how many letters a box keeps.
const mostKept = 100

// Box keeps letters in memory in place of sending them, for somebody who tries the service on one
// machine. It shows everybody's letters to everybody, so it is not for anything else. The zero
// value is an empty one.
type Box struct {
	now  func() time.Time
	log  *slog.Logger
	mu   sync.Mutex
	kept []Kept
}

// Kept is a letter in a box.
type Kept struct {
	Letter
	At time.Time
}

func (b *Box) send(_ context.Context, l *Letter) error {
	// A warning, because those who try the service out see nothing less.
	b.log.Warn("a mail, which would be sent", "to", l.To, "subject", l.Subject, "link", l.Link.URL)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, Kept{*l, b.now()})
	if len(b.kept) > mostKept {
		b.kept = slices.Delete(b.kept, 0, 1)
	}
	return nil
}

// Letters returns what is in the box, the newest first.
func (b *Box) Letters() []Kept {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := slices.Clone(b.kept)
	slices.Reverse(out)
	return out
}
