package api

import (
	"context"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// BillingEndpoint receives the events of a billing system, as the API shows it.
type BillingEndpoint struct {
	ID                 string     `json:"id" format:"uuid"`
	Provider           string     `json:"provider" enum:"stripe,generic" doc:"generic: signed as Standard Webhooks says"`
	Name               string     `json:"name"`
	URL                string     `json:"url" format:"uri" doc:"The address to enter at the billing system"`
	SigningSecretLast4 []string   `json:"signing_secret_last4" nullable:"false" doc:"The last four characters of each signing secret; a signature may be made with any of them. Empty: there is none yet, and all events are refused"`
	APIKeyLast4        *string    `json:"api_key_last4" doc:"The last four characters of the API key; null: there is none"`
	SubjectFrom        string     `json:"subject_from" doc:"Where an event names the subject; generic events name it themselves"`
	GraceDays          int64      `json:"grace_days" doc:"Days for which a customer keeps the plan after a payment failed"`
	FallbackPlan       *string    `json:"fallback_plan" doc:"The plan after the grace period and after a subscription ended; null: the tenant's default plan"`
	Live               *bool      `json:"live" doc:"Whether it takes events of live mode or of test mode; null: the first event decides"`
	LastEventAt        *time.Time `json:"last_event_at"`
	RefusedAt          *time.Time `json:"refused_at" doc:"When an event was last refused, to about a second; null: never"`
	RefusedReason      *string    `json:"refused_reason" enum:"no_secret,no_signature,bad_signature,old_signature,malformed,wrong_mode,volume" doc:"Why; null: no event was refused"`
	ReconciledAt       *time.Time `json:"reconciled_at" doc:"When the subscriptions were last compared with the provider; null: never"`
	ReconcileFailedAt  *time.Time `json:"reconcile_failed_at" doc:"When the last comparison with the provider failed; it is repeated within an hour. null: it succeeded, or there was none"`
	ReconcileError     *string    `json:"reconcile_error" doc:"Why the last comparison failed, in words; null: it succeeded, or there was none"`
	CreatedAt          time.Time  `json:"created_at"`
	UpdatedAt          time.Time  `json:"updated_at"`
	Version            int64      `json:"version"`
}

// BillingEndpointFields are the optional fields of an endpoint.
type BillingEndpointFields struct {
	Name         Optional[string] `json:"name,omitempty" doc:"Up to 200 characters"`
	APIKey       Optional[string] `json:"api_key,omitempty" doc:"Restricted API key of the provider with read access to subscriptions and customers, and to invoices, checkout sessions and events if it sells credits; stored encrypted, never shown; null: none"`
	SubjectFrom  Optional[string] `json:"subject_from,omitempty" doc:"customer (default), client_reference_id, or metadata.KEY"`
	GraceDays    Optional[int64]  `json:"grace_days,omitempty" minimum:"0" maximum:"365" doc:"Default 7"`
	FallbackPlan Optional[string] `json:"fallback_plan,omitempty" doc:"Slug of a plan; null (default): the tenant's default plan"`
}

// BillingEndpointCreate is the body of POST /v1/billing/endpoints.
type BillingEndpointCreate struct {
	Provider       string             `json:"provider" enum:"stripe,generic"`
	SigningSecrets Optional[[]string] `json:"signing_secrets,omitempty" doc:"1 to 5 secrets, any of which may have made a signature; stored encrypted, never shown. Required for generic. Without it, an endpoint of Stripe refuses all events until it has a secret: Stripe shows the secret once it has the url"`
	BillingEndpointFields
}

// BillingEndpointPatch is the merge patch of PATCH /v1/billing/endpoints/{id}.
type BillingEndpointPatch struct {
	SigningSecrets   Optional[[]string] `json:"signing_secrets,omitempty" doc:"Replaces all signing secrets"`
	AddSigningSecret Optional[string]   `json:"add_signing_secret,omitempty" doc:"Adds one signing secret, to rotate without knowing the present one"`
	BillingEndpointFields
}

// BillingEndpointPath names an endpoint.
type BillingEndpointPath struct {
	ID string `path:"id" doc:"Id of the endpoint"`
}

const defaultGraceDays = 7

func billingEndpointLocation(id uuid.UUID) string { return "/v1/billing/endpoints/" + id.String() }

// billingEndpointAnswer returns an endpoint for the API. Its address begins with the public address
// of the installation or, if that is not set, with the address that the caller used.
func (a *admin) billingEndpointAnswer(ctx context.Context) func(tenants.BillingEndpoint) BillingEndpoint {
	base := a.publicURL
	if base == "" {
		base = conditionsFrom(ctx).base
	}
	return func(e tenants.BillingEndpoint) BillingEndpoint {
		return BillingEndpoint{
			ID: e.ID.String(), Provider: e.Provider, Name: e.Name, URL: base + WebhookPath(e), SigningSecretLast4: append([]string{}, e.SecretHints...),
			APIKeyLast4: optionalText(e.APIKeyHint), SubjectFrom: e.SubjectFrom, GraceDays: int64(e.GraceDays),
			FallbackPlan: optionalText(e.FallbackPlan), Live: e.Live, LastEventAt: e.LastEventAt, ReconciledAt: e.ReconciledAt,
			ReconcileFailedAt: e.ReconcileFailedAt, ReconcileError: optionalText(e.ReconcileError),
			RefusedAt: e.RefusedAt, RefusedReason: optionalText(e.RefusedWhy),
			CreatedAt: e.CreatedAt, UpdatedAt: e.UpdatedAt, Version: e.Version,
		}
	}
}

// apply sets e's fields from a body.
func (f *BillingEndpointFields) apply(e *tenants.BillingEndpoint) []ProblemField {
	e.Name = f.Name.patch(e.Name, "")
	e.SubjectFrom = f.SubjectFrom.patch(e.SubjectFrom, tenants.FromCustomer)
	e.GraceDays = int(f.GraceDays.patch(int64(e.GraceDays), defaultGraceDays))
	e.FallbackPlan = f.FallbackPlan.patch(e.FallbackPlan, "")
	if f.FallbackPlan.given() && f.FallbackPlan.Value == "" { // the store takes "" for none
		return []ProblemField{wrongField("/fallback_plan", notSlugOrNull)}
	}
	return nil
}

func (f *BillingEndpointFields) apiKey() *string {
	if !f.APIKey.Set {
		return nil
	}
	return ptr(f.APIKey.or(""))
}

func (a *admin) listBillingEndpoints(ctx context.Context, in *struct{ PageParams }) (*page[BillingEndpoint], error) {
	return listPage(ctx, a, "billing-endpoints", in.PageParams, a.billingEndpointAnswer(ctx), func(p tenants.Page) ([]tenants.BillingEndpoint, string, error) {
		return a.store.BillingEndpoints(ctx, actorFrom(ctx), p)
	})
}

func (a *admin) createBillingEndpoint(ctx context.Context, in *struct{ Body BillingEndpointCreate }) (*object[BillingEndpoint], error) {
	b := &in.Body
	e := tenants.BillingEndpoint{Provider: b.Provider, SubjectFrom: tenants.FromCustomer, GraceDays: defaultGraceDays}
	errs := b.apply(&e)
	b.SigningSecrets.refuseNull(&errs, "/signing_secrets")
	if len(errs) > 0 {
		return nil, invalid(errs...)
	}
	secrets := tenants.BillingSecrets{APIKey: b.apiKey()}
	if b.SigningSecrets.given() {
		secrets.Signing = append([]string{}, b.SigningSecrets.Value...)
	}
	made, err := a.store.CreateBillingEndpoint(ctx, actorFrom(ctx), e, secrets)
	if err != nil {
		return nil, err
	}
	return stored(a.billingEndpointAnswer(ctx)(made), made.Version, true, billingEndpointLocation(made.ID)), nil
}

func (a *admin) getBillingEndpoint(ctx context.Context, in *BillingEndpointPath) (*object[BillingEndpoint], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.store.BillingEndpointByID(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return found(a.billingEndpointAnswer(ctx)(e), e.Version), nil
}

func (a *admin) patchBillingEndpoint(ctx context.Context, in *struct {
	BillingEndpointPath
	Body BillingEndpointPatch
}) (*object[BillingEndpoint], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	e, err := a.store.EditBillingEndpoint(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match, func(e *tenants.BillingEndpoint) (tenants.BillingSecrets, error) {
		errs := b.apply(e)
		b.SigningSecrets.refuseNull(&errs, "/signing_secrets")
		if b.SigningSecrets.Set && b.AddSigningSecret.given() {
			errs = append(errs, wrongField("/add_signing_secret", limit.Wrong("Send one of the two.", "cannot be combined with signing_secrets")))
		}
		secrets := tenants.BillingSecrets{APIKey: b.apiKey()}
		if b.SigningSecrets.given() {
			secrets.Signing = append([]string{}, b.SigningSecrets.Value...)
		}
		if b.AddSigningSecret.given() {
			secrets.AddSigning = &b.AddSigningSecret.Value
		}
		return secrets, invalidIfAny(errs)
	})
	if err != nil {
		return nil, err
	}
	return found(a.billingEndpointAnswer(ctx)(e), e.Version), nil
}

func (a *admin) deleteBillingEndpoint(ctx context.Context, in *BillingEndpointPath) error {
	id, err := objectID(in.ID)
	if err != nil {
		return err
	}
	return a.store.DeleteBillingEndpoint(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match)
}

// reconcileBillingEndpoint makes a server compare an endpoint with its provider.
func (a *admin) reconcileBillingEndpoint(ctx context.Context, in *BillingEndpointPath) (*answerOf[BillingEndpoint], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	e, err := a.store.RequestReconcile(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	a.billing.Wake()
	return &answerOf[BillingEndpoint]{Body: a.billingEndpointAnswer(ctx)(e)}, nil
}

// billingRoutes adds the operations of billing.
func (a *admin) billingRoutes() {
	list(a, "/v1/billing/endpoints", "list-billing-endpoints", "List billing endpoints", a.listBillingEndpoints)
	create(a, "/v1/billing/endpoints", "create-billing-endpoint", "Create a billing endpoint", a.createBillingEndpoint)
	read(a, "/v1/billing/endpoints/{id}", "get-billing-endpoint", "Get a billing endpoint", a.getBillingEndpoint)
	patch(a, "/v1/billing/endpoints/{id}", "patch-billing-endpoint", "Change a billing endpoint", a.patchBillingEndpoint)
	remove(a, "/v1/billing/endpoints/{id}", "delete-billing-endpoint", "Delete a billing endpoint, its prices and events", a.deleteBillingEndpoint)

	act(a, "/v1/billing/endpoints/{id}/reconcile", "reconcile-billing-endpoint", "Compare a billing endpoint with its provider now", a.reconcileBillingEndpoint, about(
		"billing", "The comparison takes a few seconds for each thousand subscriptions. When it has ended, reconciled_at of the endpoint changes; if it failed, reconcile_failed_at and reconcile_error. Corrections are rows of the audit trail."))

	list(a, "/v1/billing/prices", "list-billing-prices", "List the plans and credits of prices", a.listBillingPrices)
	read(a, "/v1/billing/prices/{id}", "get-billing-price", "Get the plan or credits of a price", a.getBillingPrice)
	put(a, "/v1/billing/prices/{id}", "put-billing-price", "Set the plan or credits of a price", a.putBillingPrice)
	remove(a, "/v1/billing/prices/{id}", "delete-billing-price", "Remove the mapping of a price", a.deleteBillingPrice)

	list(a, "/v1/billing/events", "list-billing-events", "List billing events", a.listBillingEvents)
	show(a, "/v1/billing/events/{id}", "get-billing-event", "Get a billing event", a.getBillingEvent)
	act(a, "/v1/billing/events/{id}/replay", "replay-billing-event", "Apply a billing event again", a.replayBillingEvent)
	act(a, "/v1/billing/events/{id}/dismiss", "dismiss-billing-event", "Dismiss a billing event that is parked or has failed", a.dismissBillingEvent)

	list(a, "/v1/billing/pushes", "list-meter-pushes", "List what was sent to meters", a.listMeterPushes, usesProcessor, about(
		"billing", "One item for each sealed hour and each rule with a meter event, newest hour first."))
}
