package recent

import (
	"context"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"weir/internal/check"
	"weir/internal/limit"
)

const (
	// watchedFor is how long an instance counts a subject after it was last asked for it.
	watchedFor = 20 * time.Second
	// mostWatched is the maximum number of subjects that an instance counts at the same time, and
	// mostWatchedEach that of one tenant.
	mostWatched, mostWatchedEach = 64, 16
	// WatchedMinutes is how many minutes an instance counts a subject back.
	WatchedMinutes = 60
)

// WatchedMinute has the decisions about a subject in one minute.
type WatchedMinute struct {
	StartMS         int64
	Allowed, Denied int64
}

// Watched has what instances have counted of one subject since somebody watches it.
type Watched struct {
	// Since is the instant from which all instances count every decision; zero if an instance did
	// not answer or does not count the subject.
	Since   time.Time
	Minutes []WatchedMinute // in no order; without those in which nothing was decided
	// Instances is the number of live instances, Answered is the number of those that answered.
	Instances, Answered int
}

// watchKey identifies a watched subject.
type watchKey struct {
	tenant  limit.TenantID
	subject string
}

// watchedSubject counts the decisions about one subject. Decisions only add to counters; a lock is
// taken once a minute.
type watchedSubject struct {
	sinceMS int64
	askedMS atomic.Int64 // the last time that somebody asked for it
	turning sync.Mutex   // held while a slot gets another minute
	minutes [WatchedMinutes]watchedSlot
}

type watchedSlot struct{ startMS, allowed, denied atomic.Int64 }

// count adds the decisions of a number of checks.
func (w *watchedSubject) count(checks int64, allowed bool, nowMS int64) {
	const minute = int64(time.Minute / time.Millisecond)
	start := nowMS - nowMS%minute
	slot := &w.minutes[start/minute%WatchedMinutes]
	if slot.startMS.Load() != start {
		w.turn(slot, start)
	}
	if allowed {
		slot.allowed.Add(checks)
	} else {
		slot.denied.Add(checks)
	}
}

func (w *watchedSubject) turn(slot *watchedSlot, start int64) {
	w.turning.Lock()
	defer w.turning.Unlock()
	if slot.startMS.Load() != start {
		slot.allowed.Store(0)
		slot.denied.Store(0)
		slot.startMS.Store(start)
	}
}

// watchedAnswer is what one instance has counted.
type watchedAnswer struct {
	SinceMS int64
	Minutes []WatchedMinute
}

func (w *watchedSubject) answer(nowMS int64) *watchedAnswer {
	out := &watchedAnswer{SinceMS: w.sinceMS}
	oldest := nowMS - WatchedMinutes*time.Minute.Milliseconds()
	for i := range w.minutes {
		slot := &w.minutes[i]
		if start := slot.startMS.Load(); start > oldest {
			out.Minutes = append(out.Minutes, WatchedMinute{start, slot.allowed.Load(), slot.denied.Load()})
		}
	}
	return out
}

// Watch returns what all instances have counted of a subject since it is watched, and keeps them
// counting for a while. The first call begins to count. It never fails: without Redis, it counts on
// this instance.
func (r *Log) Watch(ctx context.Context, tenant limit.TenantID, subject string) Watched {
	got := r.gather(ctx, recentRequest{Tenant: tenant, Watch: subject})
	out := Watched{Instances: got.Instances, Answered: got.Answered}
	all := append(got.watched, r.watch(tenant, subject))
	minutes := map[int64]WatchedMinute{}
	sinceMS, complete := int64(0), got.Answered == got.Instances
	for _, a := range all {
		if a == nil {
			complete = false
			continue
		}
		sinceMS = max(sinceMS, a.SinceMS)
		for _, m := range a.Minutes {
			sum := minutes[m.StartMS]
			minutes[m.StartMS] = WatchedMinute{m.StartMS, sum.Allowed + m.Allowed, sum.Denied + m.Denied}
		}
	}
	if complete {
		out.Since = time.UnixMilli(sinceMS)
	}
	for _, m := range minutes {
		out.Minutes = append(out.Minutes, m)
	}
	return out
}

// watch counts a subject of a tenant on this instance, and returns what it has counted; nil if too
// many are counted.
func (r *Log) watch(tenant limit.TenantID, subject string) *watchedAnswer {
	nowMS := r.clock().UnixMilli()
	key := watchKey{tenant, subject}
	r.mu.Lock()
	defer r.mu.Unlock()
	var before map[watchKey]*watchedSubject
	if p := r.watches.Load(); p != nil {
		before = *p
	}
	w := before[key]
	if w == nil {
		each := 0
		for k := range before {
			if k.tenant == tenant {
				each++
			}
		}
		if len(before) >= mostWatched || each >= mostWatchedEach {
			return nil
		}
		w = &watchedSubject{sinceMS: nowMS}
		after := maps.Clone(before)
		if after == nil {
			after = map[watchKey]*watchedSubject{}
		}
		after[watchKey{tenant, strings.Clone(subject)}] = w
		r.watches.Store(&after)
		if len(after) == 1 {
			time.AfterFunc(watchedFor, r.forgetWatched)
		}
	}
	w.askedMS.Store(nowMS)
	return w.answer(nowMS)
}

// forgetWatched stops counting subjects for which nobody has asked, and calls itself again while
// others are counted.
func (r *Log) forgetWatched() {
	nowMS := r.clock().UnixMilli()
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.watches.Load()
	if p == nil {
		return
	}
	after := maps.Clone(*p)
	maps.DeleteFunc(after, func(_ watchKey, w *watchedSubject) bool {
		return nowMS-w.askedMS.Load() >= watchedFor.Milliseconds()
	})
	if len(after) == 0 {
		r.watches.Store(nil)
		return
	}
	r.watches.Store(&after)
	time.AfterFunc(watchedFor, r.forgetWatched)
}

// countWatched counts a decision if somebody watches its subject.
func (r *Log) countWatched(tenant limit.TenantID, d *check.Decision, nowMS int64) {
	if watches := r.watches.Load(); watches != nil {
		if w := (*watches)[watchKey{tenant, d.Subject}]; w != nil {
			w.count(d.Checks(), d.Allowed, nowMS)
		}
	}
}
