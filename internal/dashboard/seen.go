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

// mostTypos is the largest distance between a misspelled name and the one that is meant. Names can
// have 256 bytes, and a list thousands of them, so a search for more distant ones would take long.
const mostTypos = 4

// similar returns the subject whose name is closest to a misspelled one, if any is close.
func similar(seen []seenSubject, text string) *seenSubject {
	return new(speller).closest(seen, text)
}

// speller compares names. Its rows are used again for each name.
type speller struct {
	before, last, now []int
	cells             int // how many distances of parts of names were computed
}

func (p *speller) closest(seen []seenSubject, text string) *seenSubject {
	text = strings.ToLower(text)
	best, bound := -1, 1+min(len(text)/4, mostTypos-1)
	for i := range seen {
		name := strings.ToLower(seen[i].Name)
		if distance := p.distance(name, text, bound); distance <= bound {
			best, bound = i, distance-1
		}
	}
	if best < 0 {
		return nil
	}
	return &seen[best]
}

// distance is the number of bytes to insert, delete, replace or swap with the next one, or most+1
// if it is larger than most. Parts of the names whose lengths differ by more than most are not
// compared.
func (p *speller) distance(a, b string, most int) int {
	if max(len(a)-len(b), len(b)-len(a)) > most {
		return most + 1
	}
	p.rows(len(b) + 1)
	for j := range p.last {
		p.last[j] = min(j, most+1)
	}
	leastBefore := 0
	for i := 1; i <= len(a); i++ {
		from, to := max(i-most, 1), min(i+most, len(b))
		p.now[from-1] = most + 1
		if from == 1 {
			p.now[0] = min(i, most+1)
		}
		least := p.now[from-1]
		for j := from; j <= to; j++ {
			p.cells++
			d := p.last[j-1]
			if a[i-1] != b[j-1] {
				d++
			}
			d = min(d, p.last[j]+1, p.now[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, p.before[j-2]+1)
			}
			p.now[j] = min(d, most+1)
			least = min(least, d)
		}
		if to < len(b) {
			p.now[to+1] = most + 1
		}
		if least > most && leastBefore > most { // distances only grow
			return most + 1
		}
		leastBefore = least
		p.before, p.last, p.now = p.last, p.now, p.before
	}
	return min(p.last[len(b)], most+1)
}

// rows makes the rows as long as a name needs.
func (p *speller) rows(n int) {
	for _, row := range []*[]int{&p.before, &p.last, &p.now} {
		*row = slices.Grow((*row)[:0], n)[:n]
	}
}
