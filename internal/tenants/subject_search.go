package tenants

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// SubjectFilter selects the subjects that meet all of its conditions.
type SubjectFilter struct {
	Prefix     string              // the subject begins with these bytes
	Plan       string              // the slug of its own plan; "": any or none
	State      *check.SubjectState // nil: any
	LabelKey   string              // it has this label
	LabelValue *string             // with this value; nil: any
	ByName     bool                // sorted by name, also without a prefix
}

// Subjects lists registered subjects with their overrides, and returns where the next page begins.
// They are sorted newest first, or with a prefix or ByName by their bytes, because only then
// subjects with the same prefix are adjacent. A page with very many overrides ends early, after at
// least one subject. Errors: *InvalidError, ErrUnavailable.
func (s *Store) Subjects(ctx context.Context, a Actor, f SubjectFilter, p Page) (out []Subject, next string, err error) {
	return s.subjects(ctx, a, f, p, true)
}

// SubjectHeads lists registered subjects like Subjects, but without their overrides, and its pages
// do not end early.
func (s *Store) SubjectHeads(ctx context.Context, a Actor, f SubjectFilter, p Page) (out []Subject, next string, err error) {
	return s.subjects(ctx, a, f, p, false)
}

func (s *Store) subjects(ctx context.Context, a Actor, f SubjectFilter, p Page, overrides bool) (out []Subject, next string, err error) {
	if err := f.validate(); err != nil {
		return nil, "", err
	}
	search := subjectSearch{SubjectFilter: f, byName: f.Prefix != "" || f.ByName, after: p.After}
	if search.byName && p.After != "" && limit.ValidName(p.After) != nil {
		return nil, "", invalid("cursor", notAnyCursor)
	} else if !search.byName {
		if _, err := p.after(); err != nil {
			return nil, "", err
		}
	}
	sql, args := search.build(a.tenant, p.most())
	err = s.read(ctx, a, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if _, err := tx.Exec(ctx, byIndexSQL); err != nil {
			return err
		}
		found, err := searchSubjects(ctx, tx, sql, args)
		if err != nil {
			return err
		}
		listed := found[:min(len(found), int(p.most())-1)]
		if overrides {
			out, err = firstOfPage(ctx, q, a.tenant, listed)
		} else {
			out, err = withoutOverrides(listed)
		}
		if err == nil && len(out) < len(found) {
			next = search.place(found[len(out)-1])
		}
		return err
	})
	return out, next, err
}

// place returns where the page after this row begins.
func (f *subjectSearch) place(row db.SubjectByNameRow) string {
	if f.byName {
		return row.Subject
	}
	return row.ID.String()
}

// byIndexSQL makes Postgres read the rows of a search in the order of an index, whatever its
// statistics are: the plan that is best on average is bad for a tenant without matching rows. A
// sort that remains has a very high cost then, for which Postgres would compile the statement.
const byIndexSQL = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
    set_config('enable_sort', 'off', true), set_config('jit', 'off', true)`

func searchSubjects(ctx context.Context, tx pgx.Tx, sql string, args []any) ([]db.SubjectByNameRow, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByName[db.SubjectByNameRow])
}

// subjectSearch is a page of a filter. Its statement contains only the given conditions, so that
// for each combination there is one index (migrations/000015) that has the page in one range.
type subjectSearch struct {
	SubjectFilter
	byName bool   // sorted by bytes; otherwise newest first
	after  string // the subject or the id that the page before ended with; "": from the start
}

// build returns the statement and its arguments. most is the maximum number of rows.
func (f *subjectSearch) build(tenant uuid.UUID, most int32) (sql string, args []any) {
	value := func(v any) string {
		args = append(args, v)
		return fmt.Sprintf("$%d", len(args))
	}
	tenantID := value(tenant)
	where := []string{"tenant_id = " + tenantID}
	add := func(format string, values ...any) { where = append(where, fmt.Sprintf(format, values...)) }
	if f.LabelKey != "" {
		add("key = %s", value(f.LabelKey))
		if f.LabelValue != nil {
			add("value = %s", value(*f.LabelValue))
		}
	}
	if f.Plan != "" {
		add("plan_id = (SELECT id FROM plans WHERE tenant_id = %s AND slug = %s)", tenantID, value(f.Plan))
	}
	if f.State != nil {
		add("state = %s", value(f.State.String()))
		if *f.State != check.Active {
			add("state <> 'active'") // like the indexes, which have no active subjects
		}
	}
	if f.Prefix != "" {
		add("subject >= %s", value(f.Prefix))
		if end := behindPrefix(f.Prefix); end != "" {
			add("subject < %s", value(end))
		}
	}
	order := "id DESC"
	if f.byName {
		order = "subject"
	}
	switch {
	case f.after == "":
	case f.byName:
		add("subject > %s", value(f.after))
	default:
		add("id < %s::uuid", value(f.after))
	}
	part := fmt.Sprintf("WHERE %s ORDER BY %s LIMIT %s", strings.Join(where, " AND "), order, value(most))
	from := "SELECT * FROM subjects " + part
	if f.LabelKey != "" { // the rest of each subject by the primary key
		from = fmt.Sprintf(`SELECT found.* FROM (SELECT subject FROM subject_labels %s) AS page CROSS JOIN LATERAL (
    SELECT * FROM subjects WHERE tenant_id = %s AND subject = page.subject OFFSET 0) AS found`, part, tenantID)
	}
	return fmt.Sprintf(`SELECT s.tenant_id, s.subject, s.id, s.plan_id, s.plan_version, s.migration_id, s.state, s.labels, s.billing_ref, s.cycle_anchor, s.multiplier, s.has_credits,
    s.next_plan_id, s.next_plan_at, s.next_plan_at_cycle_end, s.created_at, s.updated_at, s.version, p.slug AS plan_slug, next.slug AS next_plan_slug
FROM (%s) AS s LEFT JOIN plans p ON p.tenant_id = s.tenant_id AND p.id = s.plan_id
LEFT JOIN plans next ON next.tenant_id = s.tenant_id AND next.id = s.next_plan_id
ORDER BY s.%s`, from, order), args
}

// behindPrefix returns the first text, in the order of bytes, after all texts that begin with
// prefix; "" if there is none. In UTF-8 the order of bytes is that of code points.
func behindPrefix(prefix string) string {
	for prefix != "" {
		last, size := utf8.DecodeLastRuneInString(prefix)
		prefix = prefix[:len(prefix)-size]
		switch last {
		case utf8.MaxRune: // nothing follows it except what follows the text before it
		case 0xD7FF: // surrogates are not characters
			return prefix + "\uE000"
		default:
			return prefix + string(last+1)
		}
	}
	return ""
}

func (f SubjectFilter) validate() error {
	var fields []limit.FieldError
	value := ""
	if f.LabelValue != nil {
		value = *f.LabelValue
	}
	for field, text := range map[string]string{"prefix": f.Prefix, "plan": f.Plan, "label": f.LabelKey + value} {
		if len(text) > 2*limit.MaxNameBytes || !plain(text) {
			fields = append(fields, limit.FieldProblem(field, plainUpTo(2*limit.MaxNameBytes)))
		}
	}
	return invalidIf(fields)
}
