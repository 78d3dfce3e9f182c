package tenants

import (
	"context"
	"iter"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// A subject can have an override of each of a thousand rules, each with a reason of 2000 bytes. So
// lists of subjects read the overrides of few subjects at once, and a page ends by their bytes.
const (
	// partSubjects is the number of subjects whose overrides are counted at once, and partOverrides
	// that of overrides that are read at once, unless one subject has more.
	partSubjects  = 100
	partOverrides = 2000
	// changedOverrides is the number of overrides of subjects that an import or a plan migration
	// changes at once: all of them are in memory before and after the change, for the trail.
	changedOverrides = 6000
	// pageOverrideBytes ends a page of subjects: after the one with which the overrides take so
	// many bytes. No subject has as many, so a page has less than twice as many.
	pageOverrideBytes = 4 << 20
	overrideBytes     = 300 // of an override besides its texts, in an answer
)

// inParts returns subjects with their overrides, in parts, in the order of rows. The first error
// ends them.
func inParts(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.SubjectByNameRow) iter.Seq2[[]Subject, error] {
	return func(yield func([]Subject, error) bool) {
		for counted := range slices.Chunk(rows, partSubjects) {
			counts, err := overrideCounts(ctx, q, tenant, namesOf(counted))
			if err != nil {
				yield(nil, err)
				return
			}
			for len(counted) > 0 {
				size := firstPart(counted, counts)
				part, err := withoutOverrides(counted[:size])
				if err == nil {
					err = addOverrides(ctx, q, tenant, part, func(s *Subject) bool { return counts[s.Subject] > 0 })
				}
				if !yield(part, err) || err != nil {
					return
				}
				counted = counted[size:]
			}
		}
	}
}

// inOnePart returns subjects without their overrides, like inParts.
func inOnePart(rows []db.SubjectByNameRow) iter.Seq2[[]Subject, error] {
	return func(yield func([]Subject, error) bool) { yield(withoutOverrides(rows)) }
}

// firstPart returns how many of the first rows are a part, at least one.
func firstPart(rows []db.SubjectByNameRow, counts map[string]int) int {
	overrides := 0
	for i := range rows {
		if overrides += counts[rows[i].Subject]; i > 0 && overrides > partOverrides {
			return i
		}
	}
	return len(rows)
}

// fewOverrides returns the first of subjects that are changed, at least one: those whose overrides
// can be in memory at once.
func (c *change) fewOverrides(ctx context.Context, subjects []string) ([]string, error) {
	overrides, n := 0, 0
	for counted := range slices.Chunk(subjects, partSubjects) {
		counts, err := overrideCounts(ctx, c.Queries, c.tenant, counted)
		if err != nil {
			return nil, err
		}
		for _, subject := range counted {
			if overrides += counts[subject]; n > 0 && overrides > changedOverrides {
				return subjects[:n], nil
			}
			n++
		}
	}
	return subjects, nil
}

// firstOfPage returns the subjects of a page with their overrides, at least one: the first ones of
// rows, or all.
func firstOfPage(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.SubjectByNameRow) ([]Subject, error) {
	out := make([]Subject, 0, len(rows))
	bytes := 0
	for part, err := range inParts(ctx, q, tenant, rows) {
		if err != nil {
			return nil, err
		}
		for i := range part {
			out = append(out, part[i])
			if bytes += part[i].overrideBytes(); bytes >= pageOverrideBytes {
				return out, nil
			}
		}
	}
	return out, nil
}

// overrideBytes returns about how many bytes the overrides take in an answer.
func (s *Subject) overrideBytes() (n int) {
	for i := range s.Overrides {
		o := &s.Overrides[i]
		n += overrideBytes + len(o.Rule) + len(o.Reason) + len(o.CreatedBy)
	}
	return n
}

// OverrideCounts returns how many overrides subjects have, including expired ones. Subjects without
// overrides are 0 or missing.
func (s *Store) OverrideCounts(ctx context.Context, a Actor, subjects []string) (counts map[string]int, err error) {
	if subjects = storable(subjects); len(subjects) == 0 {
		return nil, nil
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		counts, err = overrideCounts(ctx, q, a.tenant, subjects)
		return err
	})
	return counts, err
}

func overrideCounts(ctx context.Context, q *db.Queries, tenant uuid.UUID, subjects []string) (map[string]int, error) {
	rows, err := q.CountOverrides(ctx, db.CountOverridesParams{TenantID: tenant, Subjects: subjects})
	if err != nil {
		return nil, err
	}
	counts := make(map[string]int, len(rows))
	for _, row := range rows {
		counts[row.Subject] = int(row.Overrides)
	}
	return counts, nil
}

// SubjectHeadsByName returns those of the subjects that are registered, without their overrides, in
// any order.
func (s *Store) SubjectHeadsByName(ctx context.Context, a Actor, subjects []string) (out []Subject, err error) {
	if subjects = storable(subjects); len(subjects) == 0 {
		return nil, nil
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		var found []db.SubjectByNameRow
		err := eachRow(q.SubjectsByName(ctx, db.SubjectsByNameParams{TenantID: a.tenant, Subjects: subjects}))(
			func(row db.SubjectsByNameRow) { found = append(found, db.SubjectByNameRow(row)) })
		if err != nil {
			return err
		}
		out, err = withoutOverrides(found)
		return err
	})
	return out, err
}

// storable returns the names that Postgres can store: without NUL or invalid UTF-8.
func storable(subjects []string) []string {
	return slices.DeleteFunc(slices.Clone(subjects), func(name string) bool { return limit.ValidName(name) != nil })
}

func namesOf(rows []db.SubjectByNameRow) []string {
	names := make([]string, len(rows))
	for i := range rows {
		names[i] = rows[i].Subject
	}
	return names
}

func withOverrides(ctx context.Context, q *db.Queries, tenant uuid.UUID, rows []db.SubjectByNameRow) ([]Subject, error) {
	subjects, err := withoutOverrides(rows)
	if err != nil {
		return nil, err
	}
	return subjects, addOverrides(ctx, q, tenant, subjects, func(*Subject) bool { return true })
}

// addOverrides reads the overrides of those subjects for which wanted is true.
func addOverrides(ctx context.Context, q *db.Queries, tenant uuid.UUID, subjects []Subject, wanted func(*Subject) bool) error {
	index := make(map[string]int, len(subjects))
	for i := range subjects {
		if wanted(&subjects[i]) {
			index[subjects[i].Subject] = i
		}
	}
	if len(index) == 0 {
		return nil
	}
	overrides, err := q.OverridesOf(ctx, db.OverridesOfParams{TenantID: tenant, Subjects: slices.Sorted(maps.Keys(index))})
	if err != nil {
		return err
	}
	for _, o := range overrides {
		s := &subjects[index[o.Subject]]
		s.Overrides = append(s.Overrides, overrideOf(o))
	}
	return nil
}

func withoutOverrides(rows []db.SubjectByNameRow) ([]Subject, error) {
	subjects := make([]Subject, len(rows))
	for i, row := range rows {
		var err error
		if subjects[i], err = subjectOf(row); err != nil {
			return nil, err
		}
	}
	return subjects, nil
}
