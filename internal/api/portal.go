package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// The customer page: its settings, the links that open it, and the requests that customers send
// from it. The page itself is part of internal/dashboard.

// Portal are the settings of the customer page, as the API shows them.
type Portal struct {
	Brand              *string    `json:"brand" doc:"Name on the page; null: the name of the tenant"`
	Accent             *string    `json:"accent" doc:"Colour such as #1a73e8; null: that of Weir"`
	Logo               *string    `json:"logo" doc:"PNG picture in base64; null: none"`
	FrameOrigins       []string   `json:"frame_origins" doc:"Origins whose pages may show the customer page in a frame"`
	OfferedPlans       []string   `json:"offered_plans" doc:"Plans that customers may see besides their own, by slug, the smallest first"`
	Requests           bool       `json:"requests" doc:"Customers may request higher limits"`
	AutoApprovePercent int64      `json:"auto_approve_percent" doc:"Requests for up to so many percent more are approved automatically; 0: none"`
	AutoApproveFor     string     `json:"auto_approve_for" doc:"How long an automatic approval lasts"`
	AutoApproveEvery   string     `json:"auto_approve_every" doc:"A customer gets one automatic approval for a limit in this time"`
	UpdatedAt          *time.Time `json:"updated_at" doc:"null: never changed"`
	Version            int64      `json:"version"`
}

// PortalFields is the merge patch of PATCH /v1/portal.
type PortalFields struct {
	Brand              Optional[string]   `json:"brand,omitempty" doc:"Up to 80 characters; null: the name of the tenant"`
	Accent             Optional[string]   `json:"accent,omitempty" doc:"Colour of the form #1a73e8; the page darkens or lightens it where text would be hard to read; null: that of Weir"`
	Logo               Optional[string]   `json:"logo,omitempty" doc:"PNG, JPEG or WebP picture in base64, up to 256 KiB and 2048 by 2048 pixels. It is stored as a PNG of at most 320 by 96 pixels; null: none"`
	FrameOrigins       Optional[[]string] `json:"frame_origins,omitempty" doc:"Up to 20 origins: https with a host, or http with localhost and a port; null: none"`
	OfferedPlans       Optional[[]string] `json:"offered_plans,omitempty" doc:"Up to 50 plans by slug, the smallest first; null: none"`
	Requests           Optional[bool]     `json:"requests,omitempty" doc:"null: true"`
	AutoApprovePercent Optional[int64]    `json:"auto_approve_percent,omitempty" minimum:"0" maximum:"1000" doc:"null: 0"`
	AutoApproveFor     Optional[string]   `json:"auto_approve_for,omitempty" doc:"Duration from 1h to 30d; null: 1d"`
	AutoApproveEvery   Optional[string]   `json:"auto_approve_every,omitempty" doc:"Duration from 1h to 366d; null: 30d"`
}

// maxPortalBody has room for a logo in base64.
const maxPortalBody = 512 << 10

// portalRoutes adds the operations of the customer page.
func (a *admin) portalRoutes() {
	tag := about("portal", "")
	read(a, "/v1/portal", "get-portal", "Get the settings of the customer page", a.getPortal, tag, inTurns, usesProcessor)
	patch(a, "/v1/portal", "patch-portal", "Change the settings of the customer page", a.patchPortal, tag,
		func(op *huma.Operation) { op.Metadata[metaMaxBody] = maxPortalBody })
	list(a, "/v1/subjects/{subject}/portal-links", "list-portal-links", "List the links to a customer's page", a.listPortalLinks, about(
		"portal", "Links that have not expired, and those that keep a page open."))
	create(a, "/v1/subjects/{subject}/portal-links", "create-portal-link", "Create a link to a customer's page", a.createPortalLink, about(
		"portal", "The page shows this subject its own limits, and nothing of another one. The address is a secret until it was used or has expired; it is not shown again."), redacts(redactPortalLink))
	remove(a, "/v1/subjects/{subject}/portal-links/{id}", "delete-portal-link", "Revoke a link, and end the pages that it opened", a.deletePortalLink, tag, endsAccess)
	list(a, "/v1/limit-requests", "list-limit-requests", "List customers' requests for higher limits", a.listLimitRequests, tag, usesProcessor)
	show(a, "/v1/limit-requests/{id}", "get-limit-request", "Get a customer's request", a.getLimitRequest, tag)
	act(a, "/v1/limit-requests/{id}/approve", "approve-limit-request", "Approve a customer's request", a.approveLimitRequest, about(
		"portal", "Sets a temporary override of the subject."))
	act(a, "/v1/limit-requests/{id}/refuse", "refuse-limit-request", "Refuse a customer's request", a.refuseLimitRequest, tag)
}

func portalAnswer(p tenants.Portal) Portal {
	out := Portal{
		Brand: optionalText(p.Brand), Accent: optionalText(p.Accent), FrameOrigins: append([]string{}, p.FrameOrigins...),
		OfferedPlans: append([]string{}, p.OfferedPlans...), Requests: p.Requests, AutoApprovePercent: int64(p.AutoPercent),
		AutoApproveFor: p.AutoFor.Text, AutoApproveEvery: p.AutoEvery.Text, Version: p.Version,
	}
	if p.Logo != nil {
		out.Logo = ptr(base64.StdEncoding.EncodeToString(p.Logo))
	}
	if p.Version > 0 {
		out.UpdatedAt = &p.UpdatedAt
	}
	return out
}

// logo returns the picture of the body.
func (f *PortalFields) logo() ([]byte, []ProblemField) {
	logo, err := base64.StdEncoding.DecodeString(f.Logo.or(""))
	if err != nil {
		return nil, []ProblemField{wrongField("/logo", limit.MustBe("a picture in base64, with its padding and without line breaks"))}
	}
	return logo, nil
}

// apply sets p's fields from a body whose logo is base64.
func (f *PortalFields) apply(p *tenants.Portal) {
	def := tenants.DefaultPortal()
	p.Brand = f.Brand.patch(p.Brand, "")
	p.Accent = f.Accent.patch(p.Accent, "")
	if f.Logo.Set {
		p.Logo, _ = f.logo()
	}
	p.FrameOrigins = f.FrameOrigins.patch(p.FrameOrigins, def.FrameOrigins)
	p.OfferedPlans = f.OfferedPlans.patch(p.OfferedPlans, def.OfferedPlans)
	p.Requests = f.Requests.patch(p.Requests, def.Requests)
	p.AutoPercent = int(f.AutoApprovePercent.patch(int64(p.AutoPercent), 0))
	p.AutoFor.Text = f.AutoApproveFor.patch(p.AutoFor.Text, def.AutoFor.Text)
	p.AutoEvery.Text = f.AutoApproveEvery.patch(p.AutoEvery.Text, def.AutoEvery.Text)
}

func (a *admin) getPortal(ctx context.Context, _ *struct{}) (*object[Portal], error) {
	p, err := a.store.Portal(ctx, actorFrom(ctx))
	if err != nil {
		return nil, err
	}
	return found(portalAnswer(p), p.Version), nil
}

func (a *admin) patchPortal(ctx context.Context, in *struct{ Body PortalFields }) (*object[Portal], error) {
	if _, wrong := in.Body.logo(); len(wrong) > 0 {
		return nil, invalid(wrong...)
	}
	p, err := a.store.EditPortal(ctx, actorFrom(ctx), conditionsFrom(ctx).match, func(p *tenants.Portal) error {
		in.Body.apply(p)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found(portalAnswer(p), p.Version), nil
}

// PortalLink is a link to the page of a customer, as the API shows it.
type PortalLink struct {
	ID        string     `json:"id" format:"uuid"`
	Subject   string     `json:"subject"`
	SingleUse bool       `json:"single_use" doc:"Only one browser can follow it"`
	CreatedBy string     `json:"created_by"`
	CreatedAt time.Time  `json:"created_at"`
	ExpiresAt time.Time  `json:"expires_at"`
	UsedAt    *time.Time `json:"used_at" doc:"When a browser followed it last; null: never"`
}

// PortalLinkCreated is a new link with its address.
type PortalLinkCreated struct {
	PortalLink
	URL        string `json:"url" doc:"Address of the link, a secret; shown once"`
	URLOmitted bool   `json:"url_omitted,omitempty" doc:"true in a replayed answer, which has no address: create another link"`
}

// PortalLinkCreate is the body of POST /v1/subjects/{subject}/portal-links.
type PortalLinkCreate struct {
	ExpiresIn Optional[string] `json:"expires_in,omitempty" doc:"Duration from 1m to 30d in which the link can be followed; default 1h"`
	SingleUse Optional[bool]   `json:"single_use,omitempty" doc:"Only one browser can follow the link; default true"`
}

// PortalLinkPath names a link.
type PortalLinkPath struct {
	SubjectPath
	ID string `path:"id" doc:"Id of the link"`
}

func portalLinkAnswer(l tenants.PortalLink) PortalLink {
	return PortalLink{
		ID: l.ID.String(), Subject: l.Subject, SingleUse: l.SingleUse, CreatedBy: l.CreatedBy,
		CreatedAt: l.CreatedAt, ExpiresAt: l.ExpiresAt, UsedAt: l.UsedAt,
	}
}

func (a *admin) listPortalLinks(ctx context.Context, in *struct {
	SubjectPath
	PageParams
}) (*page[PortalLink], error) {
	return listPage(ctx, a, "portal-links\x00"+in.Subject, in.PageParams, portalLinkAnswer, func(p tenants.Page) ([]tenants.PortalLink, string, error) {
		return a.store.PortalLinks(ctx, actorFrom(ctx), in.Subject, p)
	})
}

func (a *admin) createPortalLink(ctx context.Context, in *struct {
	SubjectPath
	Body PortalLinkCreate
}) (*object[PortalLinkCreated], error) {
	life, err := limit.ParseDuration(in.Body.ExpiresIn.or("1h"))
	if err != nil {
		return nil, invalid(wrongField("/expires_in", limit.MustBe("a duration from 1m to 30d, such as 1h")))
	}
	link, token, err := a.store.CreatePortalLink(ctx, actorFrom(ctx), tenants.NewPortalLink{
		Subject: in.Subject, Life: time.Duration(min(life.MS, 2*tenants.MaxLinkLife.Milliseconds())) * time.Millisecond, SingleUse: in.Body.SingleUse.or(true),
	})
	if err != nil {
		return nil, pathField(err, "/subject", "subject")
	}
	base := a.publicURL
	if base == "" {
		base = conditionsFrom(ctx).base
	}
	body := PortalLinkCreated{PortalLink: portalLinkAnswer(link), URL: base + tenants.PortalLinkPath(token)}
	return &object[PortalLinkCreated]{Status: 201, Location: subjectLocation(in.Subject) + "/portal-links", Body: body}, nil
}

// redactPortalLink removes the address from the answer that is stored for replays.
func redactPortalLink(answer []byte) ([]byte, error) {
	var l PortalLinkCreated
	if err := json.Unmarshal(answer, &l); err != nil {
		return nil, err
	}
	l.URL, l.URLOmitted = "", true
	return json.Marshal(l)
}

func (a *admin) deletePortalLink(ctx context.Context, in *PortalLinkPath) error {
	id, err := objectID(in.ID)
	if err != nil {
		return err
	}
	return a.store.DeletePortalLink(ctx, actorFrom(ctx), in.Subject, id, conditionsFrom(ctx).match)
}

// LimitRequest is a customer's request, as the API shows it.
type LimitRequest struct {
	ID           string     `json:"id" format:"uuid"`
	Subject      string     `json:"subject"`
	Rule         string     `json:"rule" doc:"Slug"`
	Limit        int64      `json:"limit" doc:"The limit at the time of the request"`
	Requested    int64      `json:"requested" doc:"The limit that the customer asks for"`
	Note         string     `json:"note" doc:"Written by the customer"`
	State        string     `json:"state" enum:"open,approved,refused"`
	Automatic    bool       `json:"automatic" doc:"Approved by the settings of the customer page"`
	Granted      *int64     `json:"granted" doc:"The limit of the override; null unless approved"`
	GrantedUntil *time.Time `json:"granted_until"`
	Answer       string     `json:"answer" doc:"Shown to the customer"`
	SettledBy    *string    `json:"settled_by"`
	SettledAt    *time.Time `json:"settled_at" doc:"null while it is open"`
	CreatedAt    time.Time  `json:"created_at"`
}

// LimitRequestsQuery selects requests.
type LimitRequestsQuery struct {
	PageParams
	State   string `query:"state" enum:"open,approved,refused"`
	Subject string `query:"subject" doc:"Only requests of this subject"`
}

// LimitRequestPath names a request.
type LimitRequestPath struct {
	ID string `path:"id" doc:"Id of the request"`
}

// LimitRequestApprove is the body of an approval.
type LimitRequestApprove struct {
	For    string           `json:"for" doc:"Duration of the override, from 1h to 30d"`
	Limit  Optional[int64]  `json:"limit,omitempty" doc:"1 or more. Default: what the customer asked for"`
	Burst  Optional[int64]  `json:"burst,omitempty" doc:"Of a bucket, 1 or more; default: in proportion to the rule's"`
	Answer Optional[string] `json:"answer,omitempty" doc:"Up to 500 characters, shown to the customer"`
}

// LimitRequestRefuse is the body of a refusal.
type LimitRequestRefuse struct {
	Answer Optional[string] `json:"answer,omitempty" doc:"Up to 500 characters, shown to the customer"`
}

func limitRequestAnswer(q tenants.LimitRequest) LimitRequest {
	return LimitRequest{
		ID: q.ID.String(), Subject: q.Subject, Rule: q.Rule, Limit: q.Had, Requested: q.Asked, Note: q.Note, State: q.State,
		Automatic: q.Automatic, Granted: optionalInt(q.Granted), GrantedUntil: q.GrantedUntil, Answer: q.Answer,
		SettledBy: optionalText(q.SettledBy), SettledAt: q.SettledAt, CreatedAt: q.CreatedAt,
	}
}

func (a *admin) listLimitRequests(ctx context.Context, in *LimitRequestsQuery) (*page[LimitRequest], error) {
	filter := tenants.LimitRequestFilter{State: in.State, Subject: in.Subject}
	name := "limit-requests\x00" + in.State + "\x00" + in.Subject // no query value contains NUL
	return listPage(ctx, a, name, in.PageParams, limitRequestAnswer, func(p tenants.Page) ([]tenants.LimitRequest, string, error) {
		return a.store.LimitRequests(ctx, actorFrom(ctx), filter, p)
	})
}

func (a *admin) getLimitRequest(ctx context.Context, in *LimitRequestPath) (*answerOf[LimitRequest], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	q, err := a.store.LimitRequest(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return &answerOf[LimitRequest]{Body: limitRequestAnswer(q)}, nil
}

func (a *admin) approveLimitRequest(ctx context.Context, in *struct {
	LimitRequestPath
	Body LimitRequestApprove
}) (*answerOf[LimitRequest], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	length, problem := limit.ParseDuration(in.Body.For)
	if problem != nil {
		return nil, invalid(wrongField("/for", limit.MustBe("a duration from 1h to 30d, such as 7d")))
	}
	q, err := a.store.ApproveLimitRequest(ctx, actorFrom(ctx), id, tenants.Approval{
		Limit: in.Body.Limit.orNone(), Burst: in.Body.Burst.orNone(),
		For: time.Duration(min(length.MS, 2*tenants.MaxBoost.Milliseconds())) * time.Millisecond, Answer: in.Body.Answer.or(""),
	})
	if err != nil {
		return nil, err
	}
	return &answerOf[LimitRequest]{Body: limitRequestAnswer(q)}, nil
}

func (a *admin) refuseLimitRequest(ctx context.Context, in *struct {
	LimitRequestPath
	Body LimitRequestRefuse
}) (*answerOf[LimitRequest], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	q, err := a.store.RefuseLimitRequest(ctx, actorFrom(ctx), id, in.Body.Answer.or(""))
	if err != nil {
		return nil, err
	}
	return &answerOf[LimitRequest]{Body: limitRequestAnswer(q)}, nil
}
