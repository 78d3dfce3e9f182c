package api

import (
	"context"
	"net/http"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// PlanMigration is a migration of subjects to a plan, as the API shows it.
type PlanMigration struct {
	ID          *string      `json:"id" doc:"null in the answer to a dry run"`
	Plan        string       `json:"plan" doc:"The plan that the subjects have"`
	FromVersion *int64       `json:"from_version" doc:"The version that they have; null: any, except the newest if to is the same plan"`
	To          string       `json:"to" doc:"The plan that they get, in its newest version"`
	StartsAt    time.Time    `json:"starts_at"`
	AtCycleEnd  bool         `json:"at_cycle_end" doc:"Each subject is moved when the month of its cycle_anchor ends"`
	State       *string      `json:"state" enum:"scheduled,running,waiting,done,canceling,canceled" doc:"waiting: the changes that are left are scheduled; null in the answer to a dry run"`
	Subjects    int64        `json:"subjects" doc:"How many subjects there were at the creation"`
	Moved       int64        `json:"moved" doc:"How many were moved"`
	Waiting     int64        `json:"waiting" doc:"How many changes are scheduled"`
	CreatedBy   string       `json:"created_by"`
	CreatedAt   *time.Time   `json:"created_at"`
	EndedAt     *time.Time   `json:"ended_at" doc:"null until it has ended"`
	Preview     *PlanPreview `json:"preview,omitempty" doc:"Only in the answer to a dry run"`
}

// PlanMigrationCreate is the body of POST /v1/plans/{plan}/migrations.
type PlanMigrationCreate struct {
	FromVersion Optional[int64]  `json:"from_version,omitempty" minimum:"1" maximum:"1000000000" doc:"Only subjects with this version; default: with any, except the newest if to is the same plan"`
	To          Optional[string] `json:"to,omitempty" doc:"Slug of the plan that the subjects get, in its newest version; default: the same plan"`
	At          Optional[string] `json:"at,omitempty" doc:"now (default), cycle_end: each subject when the month of its cycle_anchor ends (without one, that of the calendar), in UTC; or a time (RFC 3339)"`
	DryRun      Optional[bool]   `json:"dry_run,omitempty" doc:"Migrate nothing: the answer is 200 and says how many subjects there are, and which would be over a limit at once"`
}

// PlanMigrationPath names a migration.
type PlanMigrationPath struct {
	PlanPath
	ID string `path:"id" doc:"Id of the migration"`
}

func planMigrationAnswer(m tenants.PlanMigration) PlanMigration {
	return PlanMigration{
		ID: ptr(m.ID.String()), Plan: m.Plan, FromVersion: optionalInt(int64(m.FromVersion)), To: m.To, StartsAt: m.StartsAt, AtCycleEnd: m.AtCycleEnd,
		State: &m.State, Subjects: m.Subjects, Moved: m.Moved, Waiting: m.Waiting, CreatedBy: m.CreatedBy, CreatedAt: &m.CreatedAt, EndedAt: m.EndedAt,
	}
}

func migrationLocation(m tenants.PlanMigration) string {
	return planLocation(m.Plan) + "/migrations/" + m.ID.String()
}

// read returns the migration that the body describes.
func (in *PlanMigrationCreate) read(plan string) (tenants.NewPlanMigration, error) {
	out := tenants.NewPlanMigration{Plan: plan, FromVersion: int(in.FromVersion.or(0)), To: in.To.or("")}
	if in.To.given() && in.To.Value == "" {
		return out, invalid(wrongField("/to", notSlugOrNull))
	}
	switch at := in.At.or("now"); at {
	case "now":
	case "cycle_end":
		out.AtCycleEnd = true
	default:
		parsed, err := time.Parse(time.RFC3339Nano, at)
		if err != nil {
			return out, invalid(wrongField("/at", limit.MustBe("now, cycle_end or a time such as 2026-01-31T12:00:00Z (RFC 3339)")))
		}
		out.StartsAt = parsed
	}
	return out, nil
}

func (a *admin) createPlanMigration(ctx context.Context, in *struct {
	PlanPath
	Body PlanMigrationCreate
}) (*object[PlanMigration], error) {
	asked, err := in.Body.read(in.Plan)
	if err != nil {
		return nil, err
	}
	if in.Body.DryRun.or(false) {
		return a.dryRunMigration(ctx, asked)
	}
	m, err := a.store.CreatePlanMigration(ctx, actorFrom(ctx), asked)
	if err != nil {
		return nil, err
	}
	return &object[PlanMigration]{Status: http.StatusCreated, Location: migrationLocation(m), Body: planMigrationAnswer(m)}, nil
}

func (a *admin) dryRunMigration(ctx context.Context, asked tenants.NewPlanMigration) (*object[PlanMigration], error) {
	end, err := a.checker.BeginPreview(ctx, actorFrom(ctx).TenantID())
	if err != nil {
		return nil, err
	}
	defer end()
	total, subjects, err := a.store.MigrationSubjects(ctx, actorFrom(ctx), asked, mostPreviewed)
	if err != nil {
		return nil, err
	}
	out := PlanMigration{
		Plan: asked.Plan, FromVersion: optionalInt(int64(asked.FromVersion)), To: asked.Plan, StartsAt: asked.StartsAt, AtCycleEnd: asked.AtCycleEnd,
		Subjects: total,
	}
	if asked.To != "" {
		out.To = asked.To
	}
	if out.StartsAt.IsZero() {
		out.StartsAt = time.Now().UTC().Truncate(time.Millisecond)
	}
	preview, err := a.preview(ctx, check.PlanChange{Plan: out.To}, total, subjects)
	if err != nil {
		return nil, err
	}
	out.Preview = &preview
	return &object[PlanMigration]{Status: http.StatusOK, Body: out}, nil
}

func (a *admin) listPlanMigrations(ctx context.Context, in *struct {
	PlanPath
	PageParams
}) (*page[PlanMigration], error) {
	return listPage(ctx, a, "plan-migrations\x00"+in.Plan, in.PageParams, planMigrationAnswer, func(p tenants.Page) ([]tenants.PlanMigration, string, error) {
		return a.store.PlanMigrations(ctx, actorFrom(ctx), in.Plan, p)
	})
}

func (a *admin) getPlanMigration(ctx context.Context, in *PlanMigrationPath) (*answerOf[PlanMigration], error) {
	return a.onePlanMigration(ctx, in, a.store.PlanMigrationByID)
}

func (a *admin) cancelPlanMigration(ctx context.Context, in *PlanMigrationPath) (*answerOf[PlanMigration], error) {
	return a.onePlanMigration(ctx, in, a.store.CancelPlanMigration)
}

// onePlanMigration answers with the migration that the path names, after do has read or changed it.
func (a *admin) onePlanMigration(
	ctx context.Context, in *PlanMigrationPath,
	do func(context.Context, tenants.Actor, string, uuid.UUID) (tenants.PlanMigration, error),
) (*answerOf[PlanMigration], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	m, err := do(ctx, actorFrom(ctx), in.Plan, id)
	if err != nil {
		return nil, err
	}
	return &answerOf[PlanMigration]{Body: planMigrationAnswer(m)}, nil
}
