package usage

import (
	"maps"
	"math"
	"slices"
	"time"
)

// usageBuffer has counts that are not delivered yet. Counts with the same key are added, so the
// memory depends on the number of keys and not on the number of checks.
type usageBuffer struct {
	rows     map[Key]Counts
	subjects map[Key]TopSubjects // Rule, Plan and Resource are empty
	bytes    int64               // roughly
}

// The size of an entry without its texts: itself, and its part of the map.
const (
	bytesPerRow     = 240
	bytesPerSubject = 96
)

func newUsageBuffer() usageBuffer {
	return usageBuffer{rows: map[Key]Counts{}, subjects: map[Key]TopSubjects{}}
}

func (k *Key) bytes() int64 { return bytesPerRow + int64(len(k.Resource)) }

func (t *TopSubjects) bytes() int64 {
	n := int64(bytesPerRow)
	for _, list := range []SubjectList{t.Checks, t.Denied} {
		for i := range list {
			n += bytesPerSubject + int64(len(list[i].Subject))
		}
	}
	return n
}

func (b *usageBuffer) add(row *Row) {
	counts, there := b.rows[row.Key]
	if !there {
		b.bytes += row.bytes()
	}
	counts.Add(row.Counts)
	b.rows[row.Key] = counts
}

func (b *usageBuffer) addSubjects(s *Subjects) {
	key := Key{Tenant: s.Tenant, StartMS: s.StartMS, Grain: s.Grain}
	top, there := b.subjects[key]
	if there {
		b.bytes -= top.bytes()
		top = top.Merge(s.TopSubjects)
	} else {
		top = s.TopSubjects
	}
	b.bytes += top.bytes()
	b.subjects[key] = top
}

// cut removes and returns up to n rows.
func (b *usageBuffer) cut(n int) (rows []Row) {
	for key, counts := range b.rows {
		if len(rows) == n {
			break
		}
		rows = append(rows, Row{key, counts})
		delete(b.rows, key)
		b.bytes -= key.bytes()
	}
	return rows
}

// cutSubjects removes and returns the lists with these keys.
func (b *usageBuffer) cutSubjects(keys []Key) (lists []Subjects) {
	for _, key := range keys {
		top, there := b.subjects[key]
		if !there { // shrink has merged or dropped it
			continue
		}
		lists = append(lists, Subjects{Tenant: key.Tenant, StartMS: key.StartMS, Grain: key.Grain, TopSubjects: top})
		delete(b.subjects, key)
		b.bytes -= top.bytes()
	}
	return lists
}

// repack frees the memory of removed entries, which a map would keep.
func (b *usageBuffer) repack() {
	rows, subjects := make(map[Key]Counts, len(b.rows)), make(map[Key]TopSubjects, len(b.subjects))
	maps.Copy(rows, b.rows)
	maps.Copy(subjects, b.subjects)
	b.rows, b.subjects = rows, subjects
}

// oldest returns the start of the oldest rows.
func (b *usageBuffer) oldest() (start time.Time, some bool) {
	ms := int64(math.MaxInt64)
	for key := range b.rows {
		ms = min(ms, key.StartMS)
	}
	return time.UnixMilli(ms), len(b.rows) > 0
}

// checks returns the number of buffered checks.
func (b *usageBuffer) checks() (n int64) {
	for key, counts := range b.rows {
		if key.Rule == "" {
			n += counts.Allowed + counts.Denied
		}
	}
	return n
}

// shrink reduces the buffer to a limit. First the minutes of the oldest hours are merged into
// hours, an eighth of the remaining ones at a time. Then the oldest hours are dropped. It returns
// the number of rows that are now counted per hour only, and the number of dropped checks.
func (b *usageBuffer) shrink(limit int64) (coarsened int, lost int64) {
	for b.bytes > limit && len(b.rows)+len(b.subjects) > 0 {
		if upTo, some := b.oldestHours(Minute); some {
			coarsened += b.coarsen(upTo)
			continue
		}
		upTo, _ := b.oldestHours(Hour)
		lost += b.drop(upTo)
	}
	if coarsened > 0 || lost > 0 {
		b.repack()
	}
	return coarsened, lost
}

// oldestHours returns the last hour of the oldest eighth of the hours that have entries of a grain,
// but at least the oldest hour.
func (b *usageBuffer) oldestHours(grain Grain) (upTo int64, some bool) {
	seen := map[int64]struct{}{}
	for key := range b.rows {
		if key.Grain == grain {
			seen[Hour.start(key.StartMS)] = struct{}{}
		}
	}
	for key := range b.subjects {
		if key.Grain == grain {
			seen[Hour.start(key.StartMS)] = struct{}{}
		}
	}
	if len(seen) == 0 {
		return 0, false
	}
	hours := slices.Sorted(maps.Keys(seen))
	return hours[(len(hours)-1)/8], true
}

// coarsen merges the minutes of each hour into one row, for all hours up to upTo.
func (b *usageBuffer) coarsen(upTo int64) (rows int) {
	old := func(key Key) bool { return key.Grain == Minute && Hour.start(key.StartMS) <= upTo }
	for key, counts := range b.rows {
		if old(key) {
			rows++
			delete(b.rows, key)
			b.bytes -= key.bytes()
			key.Grain, key.StartMS = Hour, Hour.start(key.StartMS)
			b.add(&Row{key, counts})
		}
	}
	for key, top := range b.subjects {
		if old(key) {
			delete(b.subjects, key)
			b.bytes -= top.bytes()
			b.addSubjects(&Subjects{Tenant: key.Tenant, StartMS: Hour.start(key.StartMS), Grain: Hour, TopSubjects: top})
		}
	}
	return rows
}

// drop removes the hours up to upTo.
func (b *usageBuffer) drop(upTo int64) (lost int64) {
	for key, counts := range b.rows {
		if key.StartMS <= upTo {
			if key.Rule == "" {
				lost += counts.Allowed + counts.Denied
			}
			delete(b.rows, key)
			b.bytes -= key.bytes()
		}
	}
	for key, top := range b.subjects {
		if key.StartMS <= upTo {
			delete(b.subjects, key)
			b.bytes -= top.bytes()
		}
	}
	return lost
}
