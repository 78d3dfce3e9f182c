package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/usage"
)

const (
	meterNotesLife = 30 * 24 * time.Hour // of all notes, after the last one
	mostMeterNotes = 1000                // that are looked at together
	// A note of a server whose clock is further ahead cannot be right.
	meterNoteAhead = 24 * time.Hour
)

// keepMeterNote is a script because no key is ever without an expiry.
var keepMeterNote = redis.NewScript(`redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return redis.call('PEXPIRE', KEYS[1], ARGV[3])`)

// meterNotes keeps usage.MeterNotes in a hash in Redis: instances that meter and that Postgres may
// not know.
type meterNotes struct {
	client redis.UniversalClient
	key    string
	store  *tenants.Store
	clock  func() time.Time
}

func newMeterNotes(client redis.UniversalClient, keys check.Keys, store *tenants.Store) *meterNotes {
	key, _ := keys.Private("meters", "")
	return &meterNotes{client: client, key: key, store: store, clock: time.Now}
}

// Note implements usage.MeterNotes.
func (m *meterNotes) Note(ctx context.Context, n usage.MeterNote) error {
	value := fmt.Sprint(n.Since.UnixMilli(), " ", n.At.UnixMilli())
	return keepMeterNote.Run(ctx, m.client, []string{m.key}, n.Writer.String(), value, meterNotesLife.Milliseconds()).Err()
}

// Forget implements usage.MeterNotes.
func (m *meterNotes) Forget(ctx context.Context, writer uuid.UUID) error {
	return m.client.HDel(ctx, m.key, writer.String()).Err()
}

// deliver passes notes to Postgres, and removes them. It comes before each look whether an hour can
// be sealed, so that no hour is sealed without their writers.
func (m *meterNotes) deliver(ctx context.Context) error {
	found, err := m.client.HRandFieldWithValues(ctx, m.key, mostMeterNotes).Result()
	if err != nil || len(found) == 0 {
		return err
	}
	var notes []usage.MeterNote
	var fields []string
	for _, f := range found {
		fields = append(fields, f.Key)
		if n, ok := m.parse(f.Key, f.Value); ok {
			notes = append(notes, n)
		}
	}
	if err := m.store.NoteMeters(ctx, notes); err != nil {
		return err
	}
	return m.client.HDel(ctx, m.key, fields...).Err()
}

// parse returns a note; false: no instance wrote it.
func (m *meterNotes) parse(writer, text string) (n usage.MeterNote, ok bool) {
	id, err := uuid.Parse(writer)
	var since, at int64
	if _, scanErr := fmt.Sscanf(text, "%d %d", &since, &at); err != nil || scanErr != nil {
		return n, false
	}
	if since <= 0 || at < since || at > m.clock().Add(meterNoteAhead).UnixMilli() {
		return n, false
	}
	return usage.MeterNote{Writer: id, Since: time.UnixMilli(since), At: time.UnixMilli(at)}, true
}
