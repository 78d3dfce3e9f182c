package usage

import (
	"maps"
	"slices"

	"weir/internal/limit"
)

// usageLine has the counts of one tenant, oldest first.
type usageLine struct {
	tenant limit.TenantID
	rows   []Row
	head   int         // place in rows of the oldest row; those before it have left
	index  map[Key]int // places in rows; nil: not made yet
	tops   []Subjects  // one for each period
	bytes  int64       // roughly
	waits  bool        // for its turn
}

// fewRows is the number of rows up to which a search needs no index.
const fewRows = 8

func (l *usageLine) count() int { return len(l.rows) - l.head }

func (l *usageLine) add(row *Row) {
	if known := l.at(&row.Key); known != nil {
		known.Add(row.Counts)
		return
	}
	if l.index != nil {
		l.index[row.Key] = len(l.rows)
	}
	l.rows = append(l.rows, *row)
	l.bytes += row.bytes()
}

// at returns the row of a key, or nil.
func (l *usageLine) at(key *Key) *Row {
	if l.index == nil && l.count() <= fewRows {
		for i := l.head; i < len(l.rows); i++ {
			if l.rows[i].Key == *key {
				return &l.rows[i]
			}
		}
		return nil
	}
	if l.index == nil {
		l.index = make(map[Key]int, l.count())
		for i := l.head; i < len(l.rows); i++ {
			l.index[l.rows[i].Key] = i
		}
	}
	if i, there := l.index[*key]; there {
		return &l.rows[i]
	}
	return nil
}

func (l *usageLine) addSubjects(s *Subjects) {
	for i := len(l.tops) - 1; i >= 0; i-- { // the newest one, in most cases
		if top := &l.tops[i]; top.StartMS == s.StartMS && top.Grain == s.Grain {
			l.bytes -= top.bytes()
			top.TopSubjects = top.Merge(s.TopSubjects)
			l.bytes += top.bytes()
			return
		}
	}
	l.tops = append(l.tops, *s)
	l.bytes += s.bytes()
}

// cut moves up to n of the oldest rows.
func (l *usageLine) cut(to []Row, n int) []Row {
	oldest := l.rows[l.head:min(l.head+n, len(l.rows))]
	for i := range oldest {
		l.bytes -= oldest[i].bytes()
	}
	to = append(to, oldest...)
	clear(oldest)
	l.head += len(oldest)
	l.index = nil
	if l.head >= len(l.rows)/2 { // moves each row once on average
		left := copy(l.rows, l.rows[l.head:])
		clear(l.rows[left:])
		l.rows, l.head = l.rows[:left], 0
	}
	return to
}

// cutSubjects moves the list of a period, if there is one.
func (l *usageLine) cutSubjects(to []Subjects, key Key) []Subjects {
	i := slices.IndexFunc(l.tops, func(s Subjects) bool { return s.StartMS == key.StartMS && s.Grain == key.Grain })
	if i < 0 { // shrink has merged or dropped it
		return to
	}
	l.bytes -= l.tops[i].bytes()
	to = append(to, l.tops[i])
	l.tops = slices.Delete(l.tops, i, i+1)
	return to
}

// oldestHours returns the last hour of the oldest eighth of the hours that have entries of a kind,
// but at least the oldest hour.
func (l *usageLine) oldestHours(row func(*Row) bool, top func(*Subjects) bool) (upTo int64, some bool) {
	seen := map[int64]struct{}{}
	for i := l.head; i < len(l.rows); i++ {
		if row(&l.rows[i]) {
			seen[Hour.start(l.rows[i].StartMS)] = struct{}{}
		}
	}
	for i := range l.tops {
		if top(&l.tops[i]) {
			seen[Hour.start(l.tops[i].StartMS)] = struct{}{}
		}
	}
	if len(seen) == 0 {
		return 0, false
	}
	hours := slices.Sorted(maps.Keys(seen))
	return hours[(len(hours)-1)/8], true
}

// rewrite calls f with each row and list, and adds them again if it returns true.
func (l *usageLine) rewrite(row func(*Row) bool, top func(*Subjects) bool) {
	rows, tops := l.rows[l.head:], l.tops
	l.rows, l.head, l.index, l.tops, l.bytes = nil, 0, nil, nil, 0
	for i := range rows {
		if row(&rows[i]) {
			l.add(&rows[i])
		}
	}
	for i := range tops {
		if top(&tops[i]) {
			l.addSubjects(&tops[i])
		}
	}
}

// coarsen merges the minutes of each of the oldest hours into one row.
func (l *usageLine) coarsen() (rows int, lost int64, some bool) {
	minutes := func(r *Row) bool { return r.Grain == Minute }
	minuteLists := func(s *Subjects) bool { return s.Grain == Minute }
	upTo, some := l.oldestHours(minutes, minuteLists)
	if !some {
		return 0, 0, false
	}
	l.rewrite(func(r *Row) bool {
		if hour := Hour.start(r.StartMS); minutes(r) && hour <= upTo {
			rows++
			r.Grain, r.StartMS = Hour, hour
		}
		return true
	}, func(s *Subjects) bool {
		if hour := Hour.start(s.StartMS); minuteLists(s) && hour <= upTo {
			s.Grain, s.StartMS = Hour, hour
		}
		return true
	})
	return rows, 0, true
}

// fold merges the rows of each of the oldest hours into one, for all plans and resources, and drops
// those of rules and the lists of subjects, which tell no sum.
func (l *usageLine) fold() (rows int, lost int64, some bool) {
	detailed := func(r *Row) bool { return r.Rule != "" || r.Plan != OtherPlans || r.Resource != "" }
	upTo, some := l.oldestHours(detailed, func(*Subjects) bool { return true })
	if !some {
		return 0, 0, false
	}
	l.rewrite(func(r *Row) bool {
		if detailed(r) && Hour.start(r.StartMS) <= upTo {
			rows++
			r.Plan, r.Resource = OtherPlans, ""
			return r.Rule == ""
		}
		return true
	}, func(s *Subjects) bool { return Hour.start(s.StartMS) > upTo })
	return rows, 0, true
}

// drop removes the oldest hours.
func (l *usageLine) drop() (rows int, lost int64, some bool) {
	upTo, some := l.oldestHours(func(*Row) bool { return true }, func(*Subjects) bool { return true })
	if !some {
		return 0, 0, false
	}
	l.rewrite(func(r *Row) bool {
		if Hour.start(r.StartMS) > upTo {
			return true
		}
		if r.Rule == "" {
			lost += r.Allowed + r.Denied
		}
		return false
	}, func(s *Subjects) bool { return Hour.start(s.StartMS) > upTo })
	return 0, lost, true
}
