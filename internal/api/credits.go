package api

import (
	"context"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/tenants"
)

// Credits are prepaid units of a subject for a rule, as the API shows them.
type Credits struct {
	ID        string     `json:"id" format:"uuid"`
	Subject   string     `json:"subject"`
	Rule      string     `json:"rule" doc:"Slug"`
	Units     int64      `json:"units" doc:"Granted units"`
	Spent     int64      `json:"spent" doc:"Units that checks have spent; at most a second old"`
	Balance   int64      `json:"balance" doc:"Units that can still be spent; 0 once the grant was revoked or has expired"`
	ExpiresAt *time.Time `json:"expires_at" doc:"null: never"`
	Reference *string    `json:"reference" doc:"Your own name of the grant"`
	Reason    string     `json:"reason"`
	CreatedBy string     `json:"created_by"`
	CreatedAt time.Time  `json:"created_at"`
	RevokedBy *string    `json:"revoked_by"`
	RevokedAt *time.Time `json:"revoked_at" doc:"null: it was not revoked"`
}

// CreditsCreate is the body of POST /v1/subjects/{subject}/credits.
type CreditsCreate struct {
	Rule      string              `json:"rule" doc:"Slug of a rule that counts by subject, with a fixed window, sliding_window_counter or sliding_window_buckets, without a penalty and strict"`
	Units     int64               `json:"units" doc:"1 to 1000000000000000"`
	ExpiresAt Optional[time.Time] `json:"expires_at,omitempty" doc:"From then on the rest cannot be spent; default: never"`
	Reference Optional[string]    `json:"reference,omitempty" doc:"Your own name of the grant, such as the number of an invoice, up to 256 bytes. The same reference grants once"`
	Reason    Optional[string]    `json:"reason,omitempty" doc:"Up to 500 characters, shown in the audit log"`
}

// CreditsPath names a grant.
type CreditsPath struct {
	SubjectPath
	ID string `path:"id" doc:"Id of the grant"`
}

// creditsRoutes adds the operations on credits.
func (a *admin) creditsRoutes() {
	list(a, "/v1/subjects/{subject}/credits", "list-credits", "List the credits of a subject", a.listCredits, usesProcessor, about(
		"subjects", "Newest first, also grants of which nothing is left."))
	create(a, "/v1/subjects/{subject}/credits", "grant-credits", "Grant a subject credits", a.grantCredits, about(
		"subjects", "Credits are prepaid units for a rule. Checks that do not fit in the window spend them, those that expire first before others. "+
			"The answer to a reference that granted the same before is that grant, with the status 200."), func(op *huma.Operation) {
		op.Responses["200"] = &huma.Response{
			Description: "The reference has granted the same before",
			Headers:     etagHeader(),
			Content:     map[string]*huma.MediaType{"application/json": {Schema: schemaOf[Credits](a.api)}},
		}
	})
	show(a, "/v1/subjects/{subject}/credits/{id}", "get-credits", "Get a grant of credits", a.getCredits, about("subjects", ""))
	remove(a, "/v1/subjects/{subject}/credits/{id}", "revoke-credits", "Revoke what is left of a grant", a.revokeCredits, about(
		"subjects", "What was spent stays spent. The grant stays in the list."))
}

func (a *admin) creditsAnswer(c tenants.Credits) Credits {
	return Credits{
		ID: c.ID.String(), Subject: c.Subject, Rule: c.Rule, Units: c.Units, Spent: c.Spent, Balance: c.Balance(time.Now()),
		ExpiresAt: c.ExpiresAt, Reference: optionalText(c.Reference), Reason: c.Reason, CreatedBy: c.CreatedBy, CreatedAt: c.CreatedAt,
		RevokedBy: optionalText(c.RevokedBy), RevokedAt: c.RevokedAt,
	}
}

func (a *admin) listCredits(ctx context.Context, in *struct {
	SubjectPath
	PageParams
}) (*page[Credits], error) {
	return listPage(ctx, a, "credits\x00"+in.Subject, in.PageParams, a.creditsAnswer, func(p tenants.Page) ([]tenants.Credits, string, error) {
		return a.store.Credits(ctx, actorFrom(ctx), in.Subject, p)
	})
}

func (a *admin) grantCredits(ctx context.Context, in *struct {
	SubjectPath
	Body CreditsCreate
}) (*object[Credits], error) {
	grant := tenants.NewCredits{
		Rule: in.Body.Rule, Units: in.Body.Units, Reference: in.Body.Reference.or(""), Reason: in.Body.Reason.or(""),
	}
	if in.Body.ExpiresAt.Set && !in.Body.ExpiresAt.Null {
		grant.ExpiresAt = &in.Body.ExpiresAt.Value
	}
	c, created, err := a.store.GrantCredits(ctx, actorFrom(ctx), in.Subject, grant)
	if err != nil {
		return nil, pathField(err, "/subject", "subject")
	}
	out := &object[Credits]{Status: 200, Body: a.creditsAnswer(c)}
	if created {
		out.Status, out.Location = 201, subjectLocation(in.Subject)+"/credits/"+c.ID.String()
	}
	return out, nil
}

func (a *admin) getCredits(ctx context.Context, in *CreditsPath) (*answerOf[Credits], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	c, err := a.store.CreditsByID(ctx, actorFrom(ctx), in.Subject, id)
	if err != nil {
		return nil, err
	}
	return &answerOf[Credits]{Body: a.creditsAnswer(c)}, nil
}

func (a *admin) revokeCredits(ctx context.Context, in *CreditsPath) error {
	id, err := objectID(in.ID)
	if err != nil {
		return err
	}
	return a.store.RevokeCredits(ctx, actorFrom(ctx), in.Subject, id, conditionsFrom(ctx).match)
}
