package dashboard

import (
	"context"
	"net/http"
	"strconv"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

const (
	maxVersionColumns = 8   // of the comparison; the API lists all
	maxVersionRules   = 100 // maximum number of rows of the comparison
	maxMigrations     = 20  // maximum number of migrations on the page
	maxForeseen       = 10_000
)

// versionsView is the page of a plan's versions and migrations.
type versionsView struct {
	Slug, Name string
	Version    int64 // of the plan, for its forms
	Default    bool
	Columns    []versionColumn
	Lines      []planLine
	MoreLines  bool
	Older      int64 // subjects with an older version
	Targets    []option
	From       []option
	Migrations []migrationLine
	Open       bool // a migration has not ended
	Moving     bool // and moves or schedules subjects now
	Form       *form
}

type versionColumn struct {
	Number   int
	Newest   bool
	Subjects string
	At       string
}

type migrationLine struct {
	ID                       string
	From, To, When, State    string
	Progress, Created, Ended string
	Tone                     string
	Open, Moving             bool
}

func (d *dashboard) planVersions(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showVersions(w, r, v, &form{}, http.StatusOK)
}

func (d *dashboard) showVersions(
	w http.ResponseWriter, r *http.Request, v *visit, f *form, status int,
) error {
	view, err := d.versionsOf(r.Context(), v, chi.URLParam(r, "plan"))
	if err != nil {
		return err
	}
	view.Form = f
	v.frame.Title = "Versions of " + view.Name
	return d.render(w, r, status, versionsPage(v.frame, view))
}

func (d *dashboard) versionsOf(ctx context.Context, v *visit, slug string) (*versionsView, error) {
	plan, err := d.Store.PlanBySlug(ctx, v.actor(), slug)
	if err != nil {
		return nil, err
	}
	versions, _, err := d.Store.PlanVersions(ctx, v.actor(), slug, tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return nil, err
	}
	view := &versionsView{
		Slug: slug, Name: nameOr(plan.Name, slug), Version: plan.Version, Default: plan.Default,
		From: []option{{"", "Any older version"}},
	}
	for _, version := range versions {
		if version.Newest {
			view.From = append(view.From, option{strconv.Itoa(version.Number),
				"Version " + strconv.Itoa(version.Number) + " (newest)"})
			continue
		}
		view.Older += version.Subjects
		view.From = append(view.From, option{strconv.Itoa(version.Number), "Version " + strconv.Itoa(version.Number)})
	}
	versions = versions[:min(len(versions), maxVersionColumns)]
	for _, version := range versions {
		view.Columns = append(view.Columns, versionColumn{
			Number: version.Number, Newest: version.Newest, At: version.PublishedAt.Format("2 Jan 2006"),
			Subjects: countText(version.Subjects, "subject", "subjects"),
		})
	}
	if err := d.versionLines(ctx, v, view, versions); err != nil {
		return nil, err
	}
	plans, _, err := d.Store.PlanHeads(ctx, v.actor(), tenants.Page{Limit: maxPlanColumns})
	if err != nil {
		return nil, err
	}
	view.Targets = []option{{slug, view.Name + ", newest version"}}
	for _, p := range plans {
		if p.Slug != slug {
			view.Targets = append(view.Targets, option{p.Slug, nameOr(p.Name, p.Slug)})
		}
	}
	migrations, _, err := d.Store.PlanMigrations(ctx, v.actor(), slug, tenants.Page{Limit: maxMigrations})
	names := planNames{slug: view.Name}
	for _, p := range plans {
		names[p.Slug] = p.Name
	}
	for i := range migrations {
		line := migrationLineOf(&migrations[i], names)
		view.Migrations, view.Open = append(view.Migrations, line), view.Open || line.Open
		view.Moving = view.Moving || line.Moving
	}
	return view, err
}

// versionLines returns the rules for which some version has a limit.
func (d *dashboard) versionLines(
	ctx context.Context, v *visit, view *versionsView, versions []tenants.PlanVersion,
) error {
	policy, err := d.Policies.Get(ctx, v.actor().TenantID())
	if err != nil {
		return err
	}
	for rule := range policy.EachRule() {
		line := planLine{Slug: rule.Slug, Name: nameOr(rule.Name, rule.Slug), Path: ruleURL(rule.Slug)}
		own := false
		for i := range versions {
			lim, has := versions[i].Limits[rule.Slug]
			if own = own || has; !has {
				lim = ownLimit(rule)
			}
			line.Cells = append(line.Cells, planCell{Text: limitText(rule, lim), Own: has})
		}
		switch {
		case !own:
		case len(view.Lines) == maxVersionRules:
			view.MoreLines = true
		default:
			view.Lines = append(view.Lines, line)
		}
	}
	return nil
}

func migrationLineOf(m *tenants.PlanMigration, plans planNames) migrationLine {
	line := migrationLine{
		ID: m.ID.String(), From: "Older versions", To: plans.Of(m.To) + ", newest version", State: m.State,
		Created: spoken(m.CreatedAt, "minute") + ", " + m.CreatedBy, Open: m.EndedAt == nil,
		When: spoken(m.StartsAt, "minute"),
	}
	if m.To != m.Plan {
		line.From, line.To = "Any version", plans.Of(m.To)
	}
	if m.FromVersion > 0 {
		line.From = "Version " + strconv.Itoa(m.FromVersion)
	}
	if m.AtCycleEnd {
		line.When = "at each cycle end"
	}
	line.Progress = grouped(m.Moved) + " of " + grouped(m.Subjects) + " moved"
	if m.Waiting > 0 {
		line.Progress += ", " + grouped(m.Waiting) + " scheduled"
	}
	if m.State == tenants.MigrationDone {
		line.Tone = "good"
	}
	line.Moving = m.State == tenants.MigrationRunning || m.State == tenants.MigrationCanceling
	if line.Open && m.State == tenants.MigrationCanceling {
		line.Open = false
	}
	return line
}

// askedMigration reads the form of a migration; errors are added to the form.
func askedMigration(plan string, f *form) tenants.NewPlanMigration {
	in := tenants.NewPlanMigration{Plan: plan, To: f.Get("to"), AtCycleEnd: f.Get("at") == "cycle_end"}
	if from := f.Get("from_version"); from != "" {
		number, err := strconv.ParseInt(from, 10, 32)
		if err != nil || number < 1 {
			f.wrong("from_version", limit.MustBe("the number of a version"))
		}
		in.FromVersion = int(number)
	}
	return in
}

// migrationView is the preview of a migration.
type migrationView struct {
	Slug, Name      string
	Subjects        int64
	Words           string
	Impact          foreseenView
	From, To, At    string // of the form
	Allowed         bool
	FromText, AtTxt string
}

// foreseenView lists the subjects that would exceed a limit after a change of plans.
type foreseenView struct {
	Over      []foreseenLine
	More      int
	Degraded  bool
	Compared  int
	Sentence  string
	Truncated bool
}

type foreseenLine struct{ Subject, Path, Rule, Used, Old, New, Note string }

func foreseenOf(f check.Foresight, total int64, rules ruleNames) foreseenView {
	view := foreseenView{Degraded: f.Degraded, More: f.MoreOver, Compared: f.Compared, Truncated: f.Truncated || total > maxForeseen}
	for _, o := range f.Over {
		if len(view.Over) == maxNamedOver {
			view.More++
			continue
		}
		line := foreseenLine{
			Subject: o.Subject, Path: subjectURL(o.Subject), Rule: rules.Of(o.Rule), Used: grouped(o.Used), Old: grouped(o.Limit),
			New: grouped(o.NewLimit),
		}
		if o.Denied {
			line.Note = "denied now, too"
		}
		view.Over = append(view.Over, line)
	}
	switch n := int64(f.OverSubjects); {
	case f.Degraded:
		view.Sentence = "Subjects over a new limit: unknown. Redis is unavailable."
	case n == 0 && f.Compared == 1:
		view.Sentence = "The compared subject would not be over a limit now."
	case n == 0:
		view.Sentence = "None of the " + plural(int64(f.Compared), "compared subject", "compared subjects") +
			" would be over a limit now."
	default:
		view.Sentence = "Of the " + plural(int64(f.Compared), "compared subject", "compared subjects") + ", " +
			plural(n, "would be over a limit immediately.", "would be over a limit immediately.")
	}
	return view
}

// maxNamedOver is the maximum number of rows of a preview.
const maxNamedOver = 50

func (d *dashboard) previewMigration(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "plan")
	in := askedMigration(slug, f)
	if f.invalid() {
		return d.showVersions(w, r, v, f, http.StatusUnprocessableEntity)
	}
	plan, err := d.Store.PlanBySlug(r.Context(), v.actor(), slug)
	if err != nil {
		return err
	}
	end, err := d.Checker.BeginPreview(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	defer end()
	total, names, err := d.Store.MigrationSubjects(r.Context(), v.actor(), in, maxForeseen)
	if status := f.refuse(err); status != 0 {
		return d.showVersions(w, r, v, f, status)
	}
	if err != nil {
		return err
	}
	policy, err := d.Policies.Get(r.Context(), v.actor().TenantID())
	if err != nil {
		return err
	}
	foreseen := d.Checker.Foresee(r.Context(), policy, check.PlanChange{Plan: nameOr(in.To, slug)}, names)
	if err := r.Context().Err(); err != nil {
		return err // the client has gone, and foreseen is incomplete
	}
	view := &migrationView{
		Slug: slug, Name: nameOr(plan.Name, slug), Subjects: total, Impact: foreseenOf(foreseen, total, d.ruleNames(r.Context(), v.actor().TenantID())), Allowed: total > 0,
		From: f.Get("from_version"), To: f.Get("to"), At: f.Get("at"),
	}
	to := "version " + strconv.Itoa(plan.NewestVersion)
	if in.To != "" && in.To != slug {
		to = "plan " + d.planNames(r.Context(), v.actor()).Of(in.To)
	}
	when := " now."
	if in.AtCycleEnd {
		when = ", each at the end of its cycle."
	}
	view.Words = plural(total, "subject gets ", "subjects get ") + to + when
	if total == 0 {
		view.Words = "No subject has such a version."
	}
	v.frame.Title = "Preview"
	return d.render(w, r, http.StatusOK, migrationPage(v.frame, view))
}

func (d *dashboard) createMigration(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "plan")
	in := askedMigration(slug, f)
	if f.invalid() {
		return d.showVersions(w, r, v, f, http.StatusUnprocessableEntity)
	}
	made, err := d.Store.CreatePlanMigration(r.Context(), v.actor(), in)
	if err == nil {
		said := "Migration of " + plural(made.Subjects, "subject", "subjects") + " started."
		return d.done(w, r, planVersionsURL(slug), said)
	}
	if status := f.refuse(err); status != 0 {
		return d.showVersions(w, r, v, f, status)
	}
	return err
}

func (d *dashboard) cancelMigration(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	id, err := uuid.Parse(chi.URLParam(r, "id"))
	if err != nil {
		return tenants.ErrNotFound
	}
	slug := chi.URLParam(r, "plan")
	_, err = d.Store.CancelPlanMigration(r.Context(), v.actor(), slug, id)
	if err == nil {
		return d.done(w, r, planVersionsURL(slug), "Migration canceled.")
	}
	if status := f.refuse(err); status != 0 {
		return d.showVersions(w, r, v, f, status)
	}
	return err
}

func (d *dashboard) publishPlan(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "plan")
	made, err := d.Store.PublishPlan(r.Context(), v.actor(), slug, nil, f.match())
	if err == nil {
		return d.done(w, r, planVersionsURL(slug), "Version "+strconv.Itoa(made.NewestVersion)+
			" published. Change its limits on the page Plans.")
	}
	if status := f.refuse(err); status != 0 {
		return d.showVersions(w, r, v, f, status)
	}
	return err
}

func (d *dashboard) deleteVersion(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	number, err := strconv.ParseInt(chi.URLParam(r, "version"), 10, 32)
	if err != nil {
		return tenants.ErrNotFound
	}
	slug := chi.URLParam(r, "plan")
	err = d.Store.DeletePlanVersion(r.Context(), v.actor(), slug, int(number), f.match())
	if err == nil {
		return d.done(w, r, planVersionsURL(slug), "Version "+strconv.FormatInt(number, 10)+" deleted.")
	}
	if status := f.refuse(err); status != 0 {
		return d.showVersions(w, r, v, f, status)
	}
	return err
}

// scheduledLine is a scheduled plan change, with the limits that the subject would exceed if the
// change were applied now.
type scheduledLine struct {
	Subject, From, To, At string
	EventPath             string // of the billing event that makes the change; "": the subject is scheduled
	Over                  []string
	Unknown               bool
}

// scheduledLines compares each change with the current counters.
func (d *dashboard) scheduledLines(
	ctx context.Context, v *visit, scheduled []tenants.ScheduledPlan,
) (lines []scheduledLine, err error) {
	if len(scheduled) == 0 {
		return nil, nil
	}
	policy, err := d.Policies.Get(ctx, v.actor().TenantID())
	if err != nil {
		return nil, err
	}
	plans, rules := d.planNames(ctx, v.actor()), d.ruleNames(ctx, v.actor().TenantID())
	// Without a place the page shows its changes, but not what they would do.
	end, err := d.Checker.BeginPreview(ctx, v.actor().TenantID())
	busy := err != nil
	if !busy {
		defer end()
	}
	for _, s := range scheduled {
		line := scheduledLine{
			Subject: s.Subject, From: nameOr(plans.Of(s.Plan), "default plan"), To: plans.Of(s.NextPlan), At: spoken(s.At, "minute"), EventPath: planEventPath(s.Event),
		}
		if s.PlanVersion > 1 || s.Plan == s.NextPlan {
			line.From += ", version " + strconv.Itoa(s.PlanVersion)
		}
		if s.Plan == s.NextPlan {
			line.To += ", newest version"
		}
		if line.Unknown = busy; busy {
			lines = append(lines, line)
			continue
		}
		line.Over, line.Unknown = overWords(d.Checker.Foresee(ctx, policy, check.PlanChange{Plan: s.NextPlan}, []string{s.Subject}), rules)
		lines = append(lines, line)
	}
	return lines, nil
}

// whenOptions are the times at which a migration can move subjects.
func whenOptions() []option {
	return []option{{"now", "Now"}, {"cycle_end", "At the end of each subject's cycle"}}
}
