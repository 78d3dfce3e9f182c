package api

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// Subject is a registered subject, as the API shows it.
type Subject struct {
	Subject     string              `json:"subject"`
	Plan        *string             `json:"plan" doc:"null: the tenant's default plan"`
	PlanVersion *int64              `json:"plan_version" doc:"Version of the plan; null: the newest of the default plan"`
	State       string              `json:"state" enum:"active,blocked,exempt" doc:"blocked: every check is denied; exempt: its rules act as in shadow mode"`
	Labels      map[string]string   `json:"labels"`
	BillingRef  *string             `json:"billing_ref" doc:"Name in your billing system"`
	CycleAnchor *time.Time          `json:"cycle_anchor" doc:"Where the windows of rules with the anchor subject begin; null: by the calendar"`
	Multiplier  int64               `json:"multiplier" doc:"Multiplies the limits that the plan gives, such as by the seats that are paid for"`
	NextPlan    *string             `json:"next_plan" doc:"Slug of the plan that the subject gets at next_plan_at; null: none"`
	NextPlanAt  *time.Time          `json:"next_plan_at"`
	AtCycleEnd  bool                `json:"next_plan_at_cycle_end,omitempty" doc:"next_plan_at is the end of the cycle, and follows cycle_anchor"`
	Overrides   map[string]Override `json:"overrides" doc:"By the slug of the rule"`
	CreatedAt   time.Time           `json:"created_at"`
	UpdatedAt   time.Time           `json:"updated_at"`
	Version     int64               `json:"version"`
}

// Override is the limit of one subject for one rule, as the API shows it.
type Override struct {
	Limit
	Reason    string     `json:"reason"`
	StartsAt  *time.Time `json:"starts_at" doc:"null: immediately"`
	ExpiresAt *time.Time `json:"expires_at" doc:"null: never"`
	CreatedBy string     `json:"created_by"`
	CreatedAt time.Time  `json:"created_at"`
	Warned
}

// SubjectFields are the optional fields of a subject.
type SubjectFields struct {
	Subject     Optional[string]    `json:"subject,omitempty" doc:"If sent, must equal the path"`
	Plan        Optional[string]    `json:"plan,omitempty" doc:"Slug of a plan; default: the tenant's default plan"`
	PlanVersion Optional[int64]     `json:"plan_version,omitempty" minimum:"1" maximum:"1000000000" doc:"Version of the plan; default: the present version of the same plan, and the newest of another one"`
	State       Optional[string]    `json:"state,omitempty" enum:"active,blocked,exempt" doc:"Default active"`
	BillingRef  Optional[string]    `json:"billing_ref,omitempty" doc:"Name in your billing system; up to 256 bytes"`
	CycleAnchor Optional[time.Time] `json:"cycle_anchor,omitempty" doc:"RFC 3339, to the millisecond: where the windows of rules with the anchor subject begin; default: by the calendar"`
	Multiplier  Optional[int64]     `json:"multiplier,omitempty" minimum:"1" maximum:"1000000" doc:"Multiplies the limits that the plan gives; default 1"`
}

// NextPlanFields schedule a change of the plan.
type NextPlanFields struct {
	NextPlan   Optional[string] `json:"next_plan,omitempty" doc:"Slug of the plan that the subject gets at next_plan_at; null cancels the change"`
	NextPlanAt Optional[string] `json:"next_plan_at,omitempty" doc:"RFC 3339, or cycle_end: when the month of the cycle_anchor ends (without one, that of the calendar), in UTC. Required with next_plan"`
}

// SubjectPut is the body of PUT /v1/subjects/{subject}. It does not change the subject's overrides.
type SubjectPut struct {
	SubjectFields
	NextPlanFields
	Labels Optional[map[string]string] `json:"labels,omitempty" doc:"At most 32; names of 1 to 63 of A-Z, a-z, 0-9, _ . - /"`
}

// SubjectPatch is the merge patch of PATCH /v1/subjects/{subject}.
type SubjectPatch struct {
	SubjectFields
	NextPlanFields
	Labels Optional[map[string]Optional[string]] `json:"labels,omitempty" doc:"null removes a label"`
}

// OverrideInput is the body of PUT /v1/subjects/{subject}/overrides/{rule}.
type OverrideInput struct {
	LimitInput
	Reason    Optional[string]    `json:"reason,omitempty" doc:"Up to 500 characters"`
	StartsAt  Optional[time.Time] `json:"starts_at,omitempty" doc:"RFC 3339; default: immediately"`
	ExpiresAt Optional[time.Time] `json:"expires_at,omitempty" doc:"RFC 3339, in the future; default: never"`
}

// SubjectPath names a subject.
type SubjectPath struct {
	Subject string `path:"subject" doc:"Percent-encoded; 1 to 256 bytes of UTF-8 without control characters"`
}

// OverridePath names the override of a subject for a rule.
type OverridePath struct {
	SubjectPath
	RulePath
}

// SubjectsQuery selects subjects.
type SubjectsQuery struct {
	PageParams
	SubjectFilterParams
}

func subjectLocation(subject string) string { return "/v1/subjects/" + url.PathEscape(subject) }

func subjectAnswer(s tenants.Subject) Subject {
	overrides := make(map[string]Override, len(s.Overrides))
	for _, o := range s.Overrides {
		overrides[o.Rule] = overrideAnswer(o)
	}
	labels := s.Labels
	if labels == nil {
		labels = map[string]string{}
	}
	return Subject{
		Subject: s.Subject, Plan: optionalText(s.Plan), PlanVersion: optionalInt(int64(s.PlanVersion)), State: s.State.String(), Labels: labels,
		BillingRef: optionalText(s.BillingRef), CycleAnchor: s.CycleAnchor, Multiplier: int64(s.Multiplier),
		NextPlan: optionalText(s.NextPlan), NextPlanAt: s.NextPlanAt, AtCycleEnd: s.NextPlanAtCycleEnd, Overrides: overrides,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, Version: s.Version,
	}
}

func overrideAnswer(o tenants.Override) Override {
	return Override{
		Limit: limitAnswer(o.Limit), Reason: o.Reason, StartsAt: o.StartsAt, ExpiresAt: o.ExpiresAt,
		CreatedBy: o.CreatedBy, CreatedAt: o.CreatedAt,
	}
}

// apply sets s's fields from a body; a field that is null is cleared.
func (f *SubjectFields) apply(s *tenants.Subject) []ProblemField {
	s.Plan = f.Plan.patch(s.Plan, "")
	s.BillingRef = f.BillingRef.patch(s.BillingRef, "")
	if f.CycleAnchor.Set {
		s.CycleAnchor = optionalTime(f.CycleAnchor)
	}
	s.Multiplier = int(f.Multiplier.patch(int64(max(s.Multiplier, 1)), 1))
	// The name is valid according to the schema, which lists the names.
	s.State, _ = check.ParseSubjectState(f.State.patch(s.State.String(), check.Active.String()))
	s.GivePlanVersion = int(f.PlanVersion.or(0))
	errs := mismatch(f.Subject, "/subject", s.Subject)
	if f.PlanVersion.given() && s.Plan == "" {
		errs = append(errs, wrongField("/plan_version", limit.Wrong("Send plan, too, or omit it.", "requires a plan")))
	}
	if f.Plan.Set && !f.Plan.Null && f.Plan.Value == "" { // the store takes "" for none
		errs = append(errs, wrongField("/plan", notSlugOrNull))
	}
	return errs
}

// schedule sets the scheduled plan change from a body, after all other fields, because the cycle
// depends on the anchor.
func (f *NextPlanFields) schedule(s *tenants.Subject, now time.Time) []ProblemField {
	if f.NextPlan.Set {
		s.NextPlan = f.NextPlan.or("")
		if s.NextPlan == "" && !f.NextPlanAt.Set { // it is cancelled
			s.NextPlanAt, s.NextPlanAtCycleEnd = nil, false
		}
	}
	switch {
	case !f.NextPlanAt.Set:
	case f.NextPlanAt.Null:
		s.NextPlanAt, s.NextPlanAtCycleEnd = nil, false
	case f.NextPlanAt.Value == "cycle_end":
		s.NextPlanAt, s.NextPlanAtCycleEnd = ptr(tenants.CycleEnd(s.CycleAnchor, now)), true
	default:
		at, err := time.Parse(time.RFC3339Nano, f.NextPlanAt.Value)
		if err != nil {
			return []ProblemField{wrongField("/next_plan_at", limit.MustBe("cycle_end or a time such as 2026-01-31T12:00:00Z (RFC 3339)"))}
		}
		s.NextPlanAt, s.NextPlanAtCycleEnd = &at, false
	}
	if f.NextPlan.given() && f.NextPlan.Value == "" {
		return []ProblemField{wrongField("/next_plan", notSlugOrNull)}
	}
	return nil
}

// PlanChange is a scheduled change of a subject's plan.
type PlanChange struct {
	Subject     string     `json:"subject"`
	Plan        *string    `json:"plan" doc:"The present plan; null: the tenant's default plan"`
	PlanVersion *int64     `json:"plan_version" doc:"Version of the present plan"`
	NextPlan    string     `json:"next_plan"`
	At          time.Time  `json:"at"`
	AtCycleEnd  bool       `json:"at_cycle_end,omitempty" doc:"The end of the subject's cycle: it follows the cycle_anchor"`
	Event       *string    `json:"billing_event" format:"uuid" doc:"The parked billing event that makes the change; dismiss it to cancel the change. null: next_plan of the subject makes it"`
	Over        []PlanOver `json:"over" doc:"The limits that the subject would be over if the change were made now"`
}

func (a *admin) listPlanChanges(ctx context.Context, in *struct{ PageParams }) (*page[PlanChange], error) {
	answer := func(c tenants.ScheduledPlan) PlanChange {
		change := PlanChange{
			Subject: c.Subject, Plan: optionalText(c.Plan), PlanVersion: optionalInt(int64(c.PlanVersion)), NextPlan: c.NextPlan, At: c.At, AtCycleEnd: c.AtCycleEnd, Over: []PlanOver{},
		}
		if c.Event != uuid.Nil {
			change.Event = ptr(c.Event.String())
		}
		return change
	}
	out, err := listPage(ctx, a, "plan-changes", in.PageParams, answer, func(p tenants.Page) ([]tenants.ScheduledPlan, string, error) {
		return a.store.ScheduledPlans(ctx, actorFrom(ctx), p)
	})
	if err != nil {
		return nil, err
	}
	return out, a.foreseeChanges(ctx, out.Body.Items)
}

// foreseeChanges adds to changes of plans which limits their subjects would be over.
func (a *admin) foreseeChanges(ctx context.Context, changes []PlanChange) error {
	subjects := map[string][]string{} // by plan
	for _, c := range changes {
		if !slices.Contains(subjects[c.NextPlan], c.Subject) { // several events can wait
			subjects[c.NextPlan] = append(subjects[c.NextPlan], c.Subject)
		}
	}
	if len(subjects) == 0 {
		return nil
	}
	end, err := a.checker.BeginPreview(ctx, actorFrom(ctx).TenantID())
	if err != nil {
		return err
	}
	defer end()
	policy, err := a.policies.Get(ctx, actorFrom(ctx).TenantID())
	if err != nil {
		return err
	}
	left := check.MaxForeseen // counters of all changes
	for _, plan := range slices.Sorted(maps.Keys(subjects)) {
		if left == 0 {
			break
		}
		f := a.checker.Foresee(ctx, policy, check.PlanChange{Plan: plan, Most: left}, subjects[plan])
		left -= f.Counters
		for _, o := range f.Over {
			for i := range changes {
				if c := &changes[i]; c.Subject == o.Subject && c.NextPlan == plan {
					c.Over = append(c.Over, planOverAnswer(o))
				}
			}
		}
	}
	return ctx.Err() // if the client has gone, over is incomplete
}

func (a *admin) listSubjects(ctx context.Context, in *SubjectsQuery) (*page[Subject], error) {
	filter, err := in.filter()
	if err != nil {
		return nil, err
	}
	list := strings.Join([]string{
		"subjects", "prefix=" + in.Prefix, "plan=" + in.Plan, "state=" + in.State, "label=" + in.Label,
	}, "\x00") // no query value contains NUL, so no two filters have the same text
	return listPage(ctx, a, list, in.PageParams, subjectAnswer, func(p tenants.Page) ([]tenants.Subject, string, error) {
		items, next, err := a.store.Subjects(ctx, actorFrom(ctx), filter, p)
		return items, next, queryErrors(err)
	})
}

func (a *admin) getSubject(ctx context.Context, in *SubjectPath) (*object[Subject], error) {
	s, err := a.store.SubjectByName(ctx, actorFrom(ctx), in.Subject)
	if err != nil {
		return nil, err
	}
	return found(subjectAnswer(s), s.Version), nil
}

func (a *admin) putSubject(ctx context.Context, in *struct {
	SubjectPath
	Body SubjectPut
}) (*object[Subject], error) {
	s := tenants.Subject{Subject: in.SubjectPath.Subject, Labels: in.Body.Labels.or(nil)}
	if errs := append(in.Body.SubjectFields.apply(&s), in.Body.schedule(&s, a.store.Now())...); len(errs) > 0 {
		return nil, invalid(errs...)
	}
	put, created, err := a.store.PutSubject(ctx, actorFrom(ctx), s, conditionsFrom(ctx).match)
	if err != nil {
		return nil, pathField(err, "/subject", "subject")
	}
	return stored(subjectAnswer(put), put.Version, created, subjectLocation(put.Subject)), nil
}

func (a *admin) patchSubject(ctx context.Context, in *struct {
	SubjectPath
	Body SubjectPatch
}) (*object[Subject], error) {
	s, err := a.store.EditSubject(ctx, actorFrom(ctx), in.SubjectPath.Subject, conditionsFrom(ctx).match, func(s *tenants.Subject) error {
		s.Labels = patchLabels(s.Labels, in.Body.Labels)
		return invalidIfAny(append(in.Body.SubjectFields.apply(s), in.Body.schedule(s, a.store.Now())...))
	})
	if err != nil {
		return nil, err
	}
	return found(subjectAnswer(s), s.Version), nil
}

// patchLabels merges a patch into labels: null removes a label, and omitted ones are unchanged.
func patchLabels(present map[string]string, patch Optional[map[string]Optional[string]]) map[string]string {
	if patch.Null {
		return nil
	}
	labels := maps.Clone(present)
	if labels == nil {
		labels = map[string]string{}
	}
	for name, value := range patch.Value {
		if value.Null {
			delete(labels, name)
		} else {
			labels[name] = value.Value
		}
	}
	return labels
}

func (a *admin) deleteSubject(ctx context.Context, in *SubjectPath) error {
	return a.store.DeleteSubject(ctx, actorFrom(ctx), in.Subject, conditionsFrom(ctx).match)
}

// putOverride registers the subject if it is not registered yet.
func (a *admin) putOverride(ctx context.Context, in *struct {
	OverridePath
	Body OverrideInput
}) (*object[Override], error) {
	var errs []ProblemField
	b := &in.Body
	o := tenants.Override{
		Rule: in.Rule, Limit: b.LimitInput.patch(limit.Limit{}, "", &errs), Reason: b.Reason.or(""),
		StartsAt: optionalTime(b.StartsAt), ExpiresAt: optionalTime(b.ExpiresAt),
	}
	if len(errs) > 0 {
		return nil, invalid(errs...)
	}
	put, created, err := a.store.PutOverride(ctx, actorFrom(ctx), in.Subject, o, conditionsFrom(ctx).match)
	if err != nil {
		return nil, pathField(err, "/subject", "subject")
	}
	location := subjectLocation(in.Subject) + "/overrides/" + in.Rule
	answer := overrideAnswer(put)
	answer.Warned = a.oneLimitWarnings(ctx, in.Rule, put.Limit)
	return stored(answer, put.Version, created, location), nil
}

func (a *admin) deleteOverride(ctx context.Context, in *OverridePath) error {
	return a.store.DeleteOverride(ctx, actorFrom(ctx), in.Subject, in.Rule, conditionsFrom(ctx).match)
}

// optionalTime returns nil if the body has no time.
func optionalTime(o Optional[time.Time]) *time.Time {
	if !o.Set || o.Null {
		return nil
	}
	return &o.Value
}
