package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
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

// dropMeterNotes removes notes that were read, except those that were replaced since.
var dropMeterNotes = redis.NewScript(`for i = 1, #ARGV, 2 do
	if redis.call('HGET', KEYS[1], ARGV[i]) == ARGV[i + 1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
return 0`)

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
	if n.Ended {
		value += fmt.Sprint(" ", n.Acknowledged)
	}
	return keepMeterNote.Run(ctx, m.client, []string{m.key}, n.Writer.String(), value, meterNotesLife.Milliseconds()).Err()
}

// deliver passes notes to Postgres, and removes them. It comes before each look whether an hour can
// be sealed, so that no hour is sealed without their writers.
func (m *meterNotes) deliver(ctx context.Context) error {
	for {
		found, err := m.client.HRandFieldWithValues(ctx, m.key, mostMeterNotes).Result()
		if err != nil || len(found) == 0 {
			return err
		}
		var notes []usage.MeterNote
		var read []any
		for _, f := range found {
			read = append(read, f.Key, f.Value)
			if n, ok := m.parse(f.Key, f.Value); ok {
				notes = append(notes, n)
			}
		}
		if err := m.store.NoteMeters(ctx, notes); err != nil {
			return err
		}
		if err := dropMeterNotes.Run(ctx, m.client, []string{m.key}, read...).Err(); err != nil || len(found) < mostMeterNotes {
			return err
		}
	}
}

// parse returns a note; false: no instance wrote it.
func (m *meterNotes) parse(writer, text string) (n usage.MeterNote, ok bool) {
	id, err := uuid.Parse(writer)
	parts := strings.Fields(text)
	if err != nil || len(parts) < 2 || len(parts) > 3 {
		return n, false
	}
	var numbers [3]int64
	for i, part := range parts {
		if numbers[i], err = strconv.ParseInt(part, 10, 64); err != nil {
			return n, false
		}
	}
	since, at, acknowledged := numbers[0], numbers[1], numbers[2]
	if since <= 0 || at < since || at > m.clock().Add(meterNoteAhead).UnixMilli() || acknowledged < 0 {
		return n, false
	}
	return usage.MeterNote{
		Writer: id, Since: time.UnixMilli(since), At: time.UnixMilli(at), Ended: len(parts) == 3, Acknowledged: acknowledged,
	}, true
}
