package dashboard

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"weir/internal/check"
	"weir/internal/recent"
	"weir/internal/tenants"
)

// seenSubject is a subject that sent checks, whether it is registered or not.
type seenSubject struct {
	Name   string
	Checks int64 // a lower bound
	Denied bool  // recently

	Sum, DeniedSum int64 // checks and denials in seenWithin, lower bounds
	Limited        bool  // denied a short time ago
}

// Note says what a list shows beside the name.
func (s *seenSubject) Note() string {
	if s.Denied {
		return "denied recently"
	}
	return ""
}

const (
	seenWithin   = 30 * 24 * time.Hour
	mostSeenNear = 50
	mostRecents  = 200
)

// seenSubjects returns the subjects that usage, recent decisions and nearness to limits know, the
// busiest first. Usage keeps the busiest subjects of each step, so rare ones may be missing.
func (d *dashboard) seenSubjects(ctx context.Context, a tenants.Actor) ([]seenSubject, error) {
	seen := map[string]*seenSubject{}
	at := func(name string) *seenSubject {
		s := seen[name]
		if s == nil {
			s = &seenSubject{Name: name}
			seen[name] = s
		}
		return s
	}
	now := d.Now()
	busy, err := d.Store.BusySubjects(ctx, a, now.Add(-seenWithin), now)
	if err != nil {
		return nil, err
	}
	for i := range busy {
		b := &busy[i]
		*at(b.Subject) = seenSubject{Name: b.Subject, Checks: b.MostChecks, Sum: b.Checks, DeniedSum: b.Denied}
	}
	within, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	list := d.recent(within, a.TenantID(), recent.Query{Most: mostRecents})
	for i := range list.Decisions {
		r := &list.Decisions[i]
		s := at(r.Subject)
		s.Checks, s.Sum, s.Denied = max(s.Checks, 1), max(s.Sum, 1), s.Denied || !r.Allowed
		if !r.Allowed {
			s.DeniedSum, s.Limited = max(s.DeniedSum, 1), s.Limited || now.Sub(r.Last()) < limitedFor && r.Code != check.SubjectBlocked
		}
	}
	near := d.Recent.Near(within, a.TenantID(), mostSeenNear)
	for i := range near.Near {
		at(near.Near[i].Subject)
	}
	delete(seen, "") // the sum of subjects that usage does not distinguish
	out := make([]seenSubject, 0, len(seen))
	for _, s := range seen {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b seenSubject) int {
		return cmp.Or(cmp.Compare(b.Checks, a.Checks), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

// matching returns the subjects whose names contain the text, those that start with it first.
func matching(seen []seenSubject, text string) (out []seenSubject) {
	for _, s := range seen {
		if holds(text, s.Name) {
			out = append(out, s)
		}
	}
	slices.SortStableFunc(out, func(a, b seenSubject) int {
		return -cmp.Compare(startsWith(a.Name, text), startsWith(b.Name, text))
	})
	return out
}

func startsWith(name, text string) int {
	if strings.HasPrefix(strings.ToLower(name), strings.ToLower(text)) {
		return 1
	}
	return 0
}

// similar returns the subject whose name is closest to a misspelled one, if any is close.
func similar(seen []seenSubject, text string) *seenSubject {
	text = strings.ToLower(text)
	best, bound := -1, 1+len(text)/4
	for i := range seen {
		name := strings.ToLower(seen[i].Name)
		if max(len(name)-len(text), len(text)-len(name)) > bound { // the distance is at least as large
			continue
		}
		if distance := editDistance(name, text, bound); distance <= bound {
			best, bound = i, distance-1
		}
	}
	if best < 0 {
		return nil
	}
	return &seen[best]
}

// editDistance is the number of bytes to insert, delete, replace or swap with the next one, or
// most+1 if it is larger than most.
func editDistance(a, b string, most int) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		least := i
		for j := 1; j <= len(b); j++ {
			replace := last[j-1]
			if a[i-1] != b[j-1] {
				replace++
			}
			now[j] = min(replace, last[j]+1, now[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
			least = min(least, now[j])
		}
		if least > most && slices.Min(last) > most { // distances only grow
			return most + 1
		}
		before, last, now = last, now, before
	}
	return min(last[len(b)], most+1)
}
