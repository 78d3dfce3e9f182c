package api

import (
	"context"
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// PlanVersion is one version of a plan, as the API shows it.
type PlanVersion struct {
	Number      int64                `json:"number"`
	Newest      bool                 `json:"newest" doc:"Subjects that get the plan get this version"`
	Limits      map[string]PlanLimit `json:"limits" doc:"By the slug of the rule; an omitted rule keeps its own limit"`
	Subjects    int64                `json:"subjects" doc:"Subjects that have this version as a plan of their own; 100001 stands for more than 100000"`
	PublishedAt time.Time            `json:"published_at"`
}

// PlanVersionCreate is the body of POST /v1/plans/{plan}/versions.
type PlanVersionCreate struct {
	Limits Optional[map[string]Optional[PlanLimitInput]] `json:"limits,omitempty" doc:"What differs from the present limits, by the slug of the rule; null deletes one"`
}

// PlanVersionPath names a version of a plan.
type PlanVersionPath struct {
	PlanPath
	Version int64 `path:"version" minimum:"1" maximum:"1000000000" doc:"Number of the version"`
}

func planVersionAnswer(v tenants.PlanVersion) PlanVersion {
	return PlanVersion{Number: int64(v.Number), Newest: v.Newest, Limits: limitsAnswer(v.Limits), Subjects: v.Subjects, PublishedAt: v.PublishedAt}
}

func limitsAnswer(limits map[string]limit.Limit) map[string]PlanLimit {
	out := make(map[string]PlanLimit, len(limits))
	for rule, l := range limits {
		out[rule] = planLimitAnswer(l)
	}
	return out
}

func (a *admin) listPlanVersions(ctx context.Context, in *struct {
	PlanPath
	PageParams
}) (*page[PlanVersion], error) {
	return listPage(ctx, a, "plan-versions\x00"+in.Plan, in.PageParams, planVersionAnswer, func(p tenants.Page) ([]tenants.PlanVersion, string, error) {
		return a.store.PlanVersions(ctx, actorFrom(ctx), in.Plan, p)
	})
}

func (a *admin) publishPlan(ctx context.Context, in *struct {
	PlanPath
	Body PlanVersionCreate
}) (*object[Plan], error) {
	now, err := a.store.PlanBySlug(ctx, actorFrom(ctx), in.Plan)
	if err != nil {
		return nil, err
	}
	var errs []ProblemField
	limits := patchLimits(now.Limits, in.Body.Limits, &errs)
	if err := invalidIfAny(errs); err != nil {
		return nil, err
	}
	// Write only if the plan is still at the version that the limits were merged with.
	p, err := a.store.PublishPlan(ctx, actorFrom(ctx), in.Plan, limits, tenants.Match{Versions: []int64{now.Version}})
	if err != nil {
		return nil, err
	}
	return stored(a.planWritten(ctx, p), p.Version, true, planLocation(p.Slug)), nil
}

func (a *admin) deletePlanVersion(ctx context.Context, in *PlanVersionPath) error {
	return a.store.DeletePlanVersion(ctx, actorFrom(ctx), in.Plan, int(in.Version), conditionsFrom(ctx).match)
}

// PlanPreview says which subjects a change of limits would deny at once.
type PlanPreview struct {
	Subjects int64      `json:"subjects" doc:"Registered subjects that the change concerns; 100001 stands for more than 100000. Subjects that are not registered have the default plan"`
	Compared int64      `json:"compared" doc:"Subjects whose counters were compared: at most 10000 registered ones, and of the default plan also the busiest others; fewer if they have more than 100000 counters under rules whose limit changes"`
	Over     []PlanOver `json:"over" doc:"Those whose next check a changed limit would deny, also those that the present limit denies already; at most 1000"`
	MoreOver int64      `json:"more_over" doc:"How many more there are among the compared subjects"`
	Degraded bool       `json:"degraded" doc:"Redis is unavailable, so nothing was compared"`
}

// PlanOver is a subject that would be over a limit.
type PlanOver struct {
	Subject  string `json:"subject"`
	Rule     string `json:"rule"`
	Used     int64  `json:"used" doc:"What counts now; of a bucket no more than the present limit"`
	Limit    int64  `json:"limit" doc:"The present limit; of a bucket its burst"`
	NewLimit int64  `json:"new_limit"`
	Denied   bool   `json:"denied" doc:"The present limit denies the next check already"`
}

// PlanPreviewInput is the body of POST /v1/plans/{plan}/preview.
type PlanPreviewInput struct {
	Limits Optional[map[string]Optional[PlanLimitInput]] `json:"limits" doc:"What differs from the present limits, by the slug of the rule; null deletes one"`
}

// mostPreviewed is the maximum number of registered subjects whose counters are compared.
const mostPreviewed = 10_000

// preview holds a change of plans against the counters of subjects. The caller has a place for it
// (check.Checker.BeginPreview).
func (a *admin) preview(ctx context.Context, change check.PlanChange, total int64, subjects []string) (PlanPreview, error) {
	policy, err := a.policies.Get(ctx, actorFrom(ctx).TenantID())
	if err != nil {
		return PlanPreview{}, err
	}
	f := a.checker.Foresee(ctx, policy, change, subjects)
	if err := ctx.Err(); err != nil {
		return PlanPreview{}, err // the client has gone, and f is incomplete
	}
	out := PlanPreview{Subjects: total, Compared: int64(f.Compared), Over: []PlanOver{}, MoreOver: int64(f.MoreOver), Degraded: f.Degraded}
	for _, o := range f.Over {
		out.Over = append(out.Over, planOverAnswer(o))
	}
	return out, nil
}

func planOverAnswer(o check.Over) PlanOver {
	return PlanOver{Subject: o.Subject, Rule: o.Rule, Used: o.Used, Limit: o.Limit, NewLimit: o.NewLimit, Denied: o.Denied}
}

func (a *admin) previewPlan(ctx context.Context, in *struct {
	PlanPath
	Body PlanPreviewInput
}) (*huma.StreamResponse, error) {
	actor := actorFrom(ctx)
	end, err := a.checker.BeginPreview(ctx, actor.TenantID())
	if err != nil {
		return nil, err
	}
	defer end()
	plan, err := a.store.PlanBySlug(ctx, actor, in.Plan)
	if err != nil {
		return nil, err
	}
	var errs []ProblemField
	limits := patchLimits(plan.Limits, in.Body.Limits, &errs)
	if err := invalidIfAny(errs); err != nil {
		return nil, err
	}
	if err := a.store.CheckPlanLimits(ctx, actor, limits); err != nil {
		return nil, err
	}
	total, subjects, err := a.store.PlanSubjects(ctx, actor, plan.Slug, mostPreviewed)
	if err != nil {
		return nil, err
	}
	out, err := a.preview(ctx, check.PlanChange{Plan: plan.Slug, Limits: limits}, total, subjects)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	return jsonAnswer(body), nil
}
