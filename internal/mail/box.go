package mail

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// mostKept is the maximum number of letters in a box.
const mostKept = 100

// Box stores letters in memory instead of sending them, for a person who tries the service on their
// own machine. Everybody can read all letters in it, so it must not be used otherwise. The zero
// value is empty.
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
	// A warning, because the default log level of a trial may be higher than info.
	b.log.Warn("a mail, which would be sent", "to", l.To, "subject", l.Subject, "link", l.Link.URL)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept = append(b.kept, Kept{*l, b.now()})
	if len(b.kept) > mostKept {
		b.kept = slices.Delete(b.kept, 0, 1)
	}
	return nil
}

// Letters returns the letters in the box, newest first.
func (b *Box) Letters() []Kept {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := slices.Clone(b.kept)
	slices.Reverse(out)
	return out
}
