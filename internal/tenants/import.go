package tenants

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants/db"
)

const (
	importTimeout = 3 * time.Minute
	importBatch   = 2000 // lines that are read, compared and written together
	// MaxLineErrors is the maximum number of listed errors of an import; further ones are only
	// counted.
	MaxLineErrors = 100
)

// SubjectLine is one line of an import. Omitted fields are unchanged, or have the defaults for a
// new subject.
type SubjectLine struct {
	Line        int // of the file, from 1
	Subject     string
	Plan        *string             // slug; "": the tenant's default plan; nil: left out
	PlanVersion int                 // of the plan; 0: omitted
	State       *check.SubjectState // nil: omitted
	BillingRef  *string             // nil: omitted
	// CycleAnchor points to nil for none; nil: omitted.
	CycleAnchor **time.Time
	Multiplier  int            // of the limits of the plan; 0: omitted
	Labels      PackedLabels   // all of them; nil: omitted
	Overrides   []OverrideLine // those that change; the subject keeps its others
}

// OverrideLine sets or deletes the override of a subject for a rule.
type OverrideLine struct {
	Override
	Remove bool
}

// PackedLabels are labels in less memory than a map, because an import has hundreds of thousands of
// them.
type PackedLabels []byte

// PackLabels packs labels; nil are none.
func PackLabels(labels map[string]string) PackedLabels {
	packed, err := json.Marshal(labelsOf(labels))
	if err != nil {
		panic(fmt.Sprintf("tenants: a map of texts cannot be written as JSON: %v", err))
	}
	return packed
}

func (p PackedLabels) unpack() map[string]string {
	labels := map[string]string{}
	if err := json.Unmarshal(p, &labels); err != nil {
		panic(fmt.Sprintf("tenants: packed labels are no JSON: %v", err))
	}
	return labels
}

// LineError is an error of one field of one line.
type LineError struct {
	Line int
	limit.FieldError
}

// LinesError lists the invalid lines of an import; nothing of it was imported.
type LinesError struct {
	Total int         // of errors
	Lines []LineError // the first MaxLineErrors
}

// Error returns the first error and the number of errors.
func (e *LinesError) Error() string {
	if len(e.Lines) == 0 {
		return "nothing is wrong"
	}
	first := e.Lines[0]
	return "line " + strconv.Itoa(first.Line) + ": " + first.FieldError.Error() + ", and " + strconv.Itoa(e.Total-1) + " more"
}

// Add records errors of a line.
func (e *LinesError) Add(line int, fields ...limit.FieldError) {
	for _, f := range fields {
		if e.Total++; len(e.Lines) < MaxLineErrors {
			e.Lines = append(e.Lines, LineError{line, f})
		}
	}
}

// ImportMode has the options of an import.
type ImportMode struct {
	CreateOnly bool // a registered subject is an error
	DryRun     bool // only report what would happen
}

// ImportCounts are the numbers of subjects that an import has registered, changed and left
// unchanged.
type ImportCounts struct {
	Created   int `json:"created"`
	Updated   int `json:"updated"`
	Unchanged int `json:"unchanged"`
}

// Validate returns the errors of a line by itself, except for its overrides, which depend on rules.
func (l *SubjectLine) Validate() []limit.FieldError {
	var fields []limit.FieldError
	s := l.over(Subject{Subject: l.Subject})
	if wrong, ok := s.validate().(*InvalidError); ok {
		fields = wrong.Fields
	}
	return fields
}

// over returns the subject after the line, without its overrides.
func (l *SubjectLine) over(s Subject) Subject {
	if l.Plan != nil {
		s.Plan = *l.Plan
	}
	s.GivePlanVersion = l.PlanVersion
	if l.State != nil {
		s.State = *l.State
	}
	if l.BillingRef != nil {
		s.BillingRef = *l.BillingRef
	}
	if l.CycleAnchor != nil {
		s.CycleAnchor = *l.CycleAnchor
	}
	if l.Multiplier != 0 {
		s.Multiplier = l.Multiplier
	}
	if l.Labels != nil {
		s.Labels = l.Labels.unpack()
	}
	return s
}

// ImportSubjects registers and changes subjects, all of them or none, under one version. The audit
// trail has a row for each subject that it registers or changes and one for the import. While it
// runs, up to a minute, other changes of the tenant, and resets, wait, but not those of other
// tenants. It ends for those that need the right to manage, and of the tenant itself: nobody can
// delay the revocation of a key by importing with it. Errors: *LinesError, ErrUnavailable,
// ErrInterrupted.
func (s *Store) ImportSubjects(ctx context.Context, a Actor, lines []SubjectLine, mode ImportMode) (counts ImportCounts, err error) {
	err = s.changeWithin(ctx, a, MayEdit, importTimeout, func(ctx context.Context, c *change) error {
		m, err := c.newSubjectImport(ctx, lines, mode)
		if err != nil {
			return err
		}
		m.inTurn = func(ctx context.Context, f func()) {
			defer s.long.Load().TryWithin(a.tenant, s.lineWait)()
			f()
		}
		for batch := range slices.Chunk(lines, importBatch) {
			if err := m.inBatches(ctx, batch); err != nil {
				return err
			}
		}
		counts = m.counts
		switch {
		case m.wrong.Total > 0:
			return &m.wrong
		case mode.DryRun || counts.Created+counts.Updated == 0:
			c.trail.full = nil
			return nil
		}
		if c.trail.full.after, err = json.Marshal(counts); err != nil {
			return err
		}
		_, err = c.next(ctx, parts{subjects: true})
		return err
	})
	if err != nil {
		return ImportCounts{}, err
	}
	return counts, nil
}

// subjectImport is an import while it runs.
type subjectImport struct {
	*change
	inTurn  func(ctx context.Context, f func()) // calls f, if possible in a turn
	mode    ImportMode
	version int64
	plans   map[string]*Plan                      // by slug
	rules   map[string]Rule                       // by slug; only if a line has overrides
	ending  map[string][]db.CustomersOverridesRow // that end if a line changes the limits of their subject
	seen    map[string]int                        // line of each subject
	refs    refClaims
	counts  ImportCounts
	wrong   LinesError
}

// newSubjectImport reads what the lines refer to.
//
// Its rows are written before the change has its number, because all other tenants' changes wait
// from then on, and writing takes seconds. They have a number between those of the tenant's earlier
// changes and its own. Nobody else can change the tenant in the meantime, so an instance that has
// read up to the former reads these rows next, and no version of a subject is used twice.
func (c *change) newSubjectImport(ctx context.Context, lines []SubjectLine, mode ImportMode) (*subjectImport, error) {
	c.trail.full = &auditRow{action: "import", kind: auditSubject}
	m := &subjectImport{
		change: c, mode: mode, plans: map[string]*Plan{}, rules: map[string]Rule{}, seen: make(map[string]int, len(lines)),
		refs: refClaims{gives: map[string]string{}, taken: map[string]string{}},
	}
	for i := range lines {
		if ref := lines[i].BillingRef; ref != nil {
			m.refs.gives[lines[i].Subject] = *ref
		}
	}
	if err := longStatements(ctx, c.tx); err != nil {
		return nil, err
	}
	// Plans that were made while the tables were small would read the complete tables for each
	// batch.
	if _, err := c.tx.Exec(ctx, "SET LOCAL enable_seqscan = off"); err != nil {
		return nil, err
	}
	now, err := c.ConfigVersion(ctx)
	if err != nil {
		return nil, err
	}
	m.version = now.Version + 1
	plans, err := c.DocumentPlans(ctx, c.tenant)
	if err != nil {
		return nil, err
	}
	all, err := planHeads(ctx, c.Queries, c.tenant, plans)
	if err != nil {
		return nil, err
	}
	for i := range all {
		m.plans[all[i].Slug] = &all[i]
	}
	if !slices.ContainsFunc(lines, func(l SubjectLine) bool { return len(l.Overrides) > 0 }) {
		return m, nil
	}
	rows, err := c.DocumentRules(ctx, c.tenant)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		if m.rules[row.Slug], err = ruleOf(row); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// inBatches imports lines in one batch or, if their subjects have many overrides, in several. The
// overrides of a batch are in memory, and so is their state before and after it, for the trail.
func (m *subjectImport) inBatches(ctx context.Context, lines []SubjectLine) error {
	var names []string
	if err := m.readEnding(ctx, lines); err != nil {
		return err
	}
	for i := range lines {
		if l := &lines[i]; len(l.Overrides)+len(m.ending[l.Subject]) > 0 {
			names = append(names, l.Subject)
		}
	}
	var counts map[string]int
	if names = storable(names); len(names) > 0 {
		var err error
		if counts, err = overrideCounts(ctx, m.Queries, m.tenant, names); err != nil {
			return err
		}
	}
	for len(lines) > 0 {
		n := batchOf(lines, counts)
		if err := m.batch(ctx, lines[:n]); err != nil {
			return err
		}
		lines = lines[n:]
		if nothing, err := m.NothingUrgent(ctx, m.tenant.String()); err != nil {
			return err
		} else if !nothing {
			return ErrInterrupted
		}
	}
	return nil
}

// readEnding reads which overrides of the lines' subjects can end with their plans: see
// Override.ofCustomer.
func (m *subjectImport) readEnding(ctx context.Context, lines []SubjectLine) error {
	var names []string
	for i := range lines {
		if l := &lines[i]; l.Plan != nil || l.PlanVersion != 0 || l.Multiplier != 0 {
			names = append(names, l.Subject)
		}
	}
	m.ending = map[string][]db.CustomersOverridesRow{}
	if names = storable(names); len(names) == 0 {
		return nil
	}
	rows, err := m.CustomersOverrides(ctx, db.CustomersOverridesParams{TenantID: m.tenant, Subjects: names})
	for _, row := range rows {
		m.ending[row.Subject] = append(m.ending[row.Subject], row)
	}
	return err
}

// batchOf returns how many lines are a batch, at least one. counts are the stored overrides of the
// subjects whose lines change some.
func batchOf(lines []SubjectLine, counts map[string]int) int {
	overrides := 0
	for i := range lines {
		overrides += len(lines[i].Overrides) + counts[lines[i].Subject]
		if i > 0 && overrides > changedOverrides {
			return i
		}
	}
	return len(lines)
}

// batch compares lines with the registered subjects, and writes the differences.
func (m *subjectImport) batch(ctx context.Context, lines []SubjectLine) error {
	registered, err := m.registered(ctx, lines)
	if err != nil {
		return err
	}
	var refs []string
	for i := range lines {
		if ref := lines[i].BillingRef; ref != nil && registered[lines[i].Subject].BillingRef != *ref {
			refs = append(refs, *ref)
		}
	}
	if m.refs.holders, err = m.refHolders(ctx, refs); err != nil {
		return err
	}
	w := importWrites{tenant: m.tenant, version: m.version, createdBy: m.actor.label()}
	for len(lines) > 0 {
		n := pieceOf(lines)
		m.inTurn(ctx, func() { m.compareLines(lines[:n], registered, &w) })
		lines = lines[n:]
	}
	if m.mode.DryRun || m.wrong.Total > 0 { // the rest is only checked for further errors
		return nil
	}
	return m.write(ctx, &w)
}

func (m *subjectImport) registered(ctx context.Context, lines []SubjectLine) (map[string]Subject, error) {
	names := make([]string, 0, len(lines))
	overrides := map[string]bool{}
	for i := range lines {
		if len(lines[i].Overrides) > 0 {
			overrides[lines[i].Subject] = true
		}
		if limit.ValidName(lines[i].Subject) == nil { // Postgres cannot store NUL
			names = append(names, lines[i].Subject)
		}
	}
	rows, err := m.SubjectsByName(ctx, db.SubjectsByNameParams{TenantID: m.tenant, Subjects: names})
	if err != nil {
		return nil, err
	}
	found := make([]db.SubjectByNameRow, len(rows))
	for i, row := range rows {
		found[i] = db.SubjectByNameRow(row)
	}
	subjects, err := withoutOverrides(found)
	if err != nil {
		return nil, err
	}
	if err := addOverrides(ctx, m.Queries, m.tenant, subjects, func(s *Subject) bool { return overrides[s.Subject] }); err != nil {
		return nil, err
	}
	byName := make(map[string]Subject, len(subjects))
	for _, s := range subjects {
		byName[s.Subject] = s
	}
	return byName, nil
}

// importWrites are the rows that a batch writes.
type importWrites struct {
	tenant       uuid.UUID
	version      int64
	createdBy    string
	created      subjectRows
	ids          []uuid.UUID // of the created subjects
	changed      subjectRows
	moved        []string // changed ones whose scheduled plan change moves with the cycle anchor
	movedTo      []string
	left         []string // changed ones that get another plan than that of their migration
	overrides    db.ImportOverridesParams
	removedFrom  []string
	removedRules []uuid.UUID
	rows         []importRow
}

// subjectRows are subjects by column.
type subjectRows struct {
	subjects    []string
	plans       []uuid.UUID
	versions    []int32 // of the plans; 1 without one
	states      []string
	labels      []string
	billingRefs []string
	anchors     []string
	multipliers []int32
}

func (r *subjectRows) add(s Subject, plan *Plan) {
	id := uuid.Nil
	if plan != nil {
		id = plan.ID
	}
	r.subjects, r.plans = append(r.subjects, s.Subject), append(r.plans, id)
	r.versions = append(r.versions, max(int32(s.PlanVersion), 1)) // a number of the database
	r.states, r.billingRefs = append(r.states, s.State.String()), append(r.billingRefs, s.BillingRef)
	r.anchors = append(r.anchors, instantText(anchorOf(s.CycleAnchor)))
	r.multipliers = append(r.multipliers, int32(s.multiplier()))
	r.labels = append(r.labels, string(PackLabels(s.Labels)))
}

func (w *importWrites) put(subject string, rule uuid.UUID, o Override) {
	p := &w.overrides
	p.Subjects, p.RuleIds = append(p.Subjects, subject), append(p.RuleIds, rule)
	p.Limits, p.Bursts = append(p.Limits, o.Limit.Limit), append(p.Bursts, o.Limit.Burst)
	p.Unlimiteds, p.Reasons = append(p.Unlimiteds, o.Limit.Unlimited), append(p.Reasons, o.Reason)
	p.Starts, p.Ends = append(p.Starts, instantText(o.StartsAt)), append(p.Ends, instantText(o.ExpiresAt))
}

// instantText returns the instant in the form for Postgres, or "".
func instantText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

func (w *importWrites) run(ctx context.Context, c *change) error {
	if n := &w.created; len(n.subjects) > 0 {
		err := c.ImportReturnedSubjects(ctx, db.ImportReturnedSubjectsParams{TenantID: w.tenant, Subjects: n.subjects})
		if err != nil {
			return err
		}
		err = c.ImportNewSubjects(ctx, db.ImportNewSubjectsParams{
			TenantID: w.tenant, Version: w.version, Subjects: n.subjects, Ids: w.ids, PlanIds: n.plans, PlanVersions: n.versions, States: n.states,
			Labels: n.labels, BillingRefs: n.billingRefs, CycleAnchors: n.anchors, Multipliers: n.multipliers,
		})
		if err != nil {
			return err
		}
	}
	if p := w.overrides; len(p.Subjects) > 0 {
		p.TenantID, p.Version, p.CreatedBy = w.tenant, w.version, w.createdBy
		if err := c.ImportOverrides(ctx, p); err != nil {
			return err
		}
	}
	if len(w.changed.subjects)+len(w.removedFrom) == 0 {
		return nil
	}
	return c.replan(ctx, w.runJoined)
}

// replan runs do with plans for the current tables. It is not for statements that only insert,
// because the foreign key checks of each row would be planned, too.
func (c *change) replan(ctx context.Context, do func(context.Context, *change) error) error {
	if _, err := c.tx.Exec(ctx, "SET LOCAL plan_cache_mode = force_custom_plan"); err != nil {
		return err
	}
	if err := do(ctx, c); err != nil {
		return err
	}
	_, err := c.tx.Exec(ctx, "SET LOCAL plan_cache_mode = auto")
	return err
}

// runJoined writes changes of existing rows.
func (w *importWrites) runJoined(ctx context.Context, c *change) error {
	if n := &w.changed; len(n.subjects) > 0 {
		err := c.ImportChangedSubjects(ctx, db.ImportChangedSubjectsParams{
			TenantID: w.tenant, Version: w.version, Subjects: n.subjects, PlanIds: n.plans, PlanVersions: n.versions, States: n.states,
			Labels: n.labels, BillingRefs: n.billingRefs, CycleAnchors: n.anchors, Multipliers: n.multipliers,
		})
		if err != nil {
			return err
		}
	}
	if len(w.left) > 0 {
		err := c.cancelImported(ctx, db.CancelMigrationOfParams{TenantID: w.tenant, Subjects: w.left, Version: w.version})
		if err != nil {
			return err
		}
	}
	if len(w.moved) > 0 {
		err := c.MoveNextPlans(ctx, db.MoveNextPlansParams{TenantID: w.tenant, Subjects: w.moved, Ats: w.movedTo})
		if err != nil {
			return err
		}
	}
	if len(w.removedFrom) == 0 {
		return nil
	}
	return c.ImportRemovedOverrides(ctx, db.ImportRemovedOverridesParams{
		TenantID: w.tenant, Subjects: w.removedFrom, RuleIds: w.removedRules,
	})
}
