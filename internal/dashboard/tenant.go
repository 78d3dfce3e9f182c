package dashboard

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// tenantView is one tenant as the operator sees it: its settings, state and usage. It does not show
// the contents of the tenant.
type tenantView struct {
	tenantRow
	ID         string
	OwnName    string
	Platform   bool // the operator's own
	Version    int64
	Partitions int
	Configured tenants.Configured
	Owners     []string // emails of those who own it
	Invited    []string // emails of owners who have not joined yet
	Link       *newLink // an invitation link to pass on if mail is off
	OwnTier    string   // slug; "" for the default tier
	TierInUse  string   // slug that checks use; "" if there are no tiers
	Tiers      []option
	Quotas     []limitView
	Shared     []option // quotas that all tenants share
	Overrides  []overrideView
	Uses       []quotaLine
	Bounds     *boundsView
	Counters   string // alive, in words; "" if unknown
	Degraded   bool
	Period     period
	Chart      chart
	Shown      *form // the period and the scale in the address

	sentForms
}

// QuotaOptions returns the quotas that the tenant can have overrides for.
func (view *tenantView) QuotaOptions() (out []option) {
	for _, q := range view.Quotas {
		out = append(out, option{q.Rule, q.Name + ": " + q.Number})
	}
	return out
}

// QuotaName returns the name of a quota by its slug.
func (view *tenantView) QuotaName(slug string) string {
	for i := range view.Quotas {
		if view.Quotas[i].Rule == slug {
			return view.Quotas[i].Name
		}
	}
	return slug
}

// Subjects returns the number of registered subjects, up to the maximum.
func (view *tenantView) Subjects() string {
	if view.Configured.Subjects > tenants.MostCountedSubjects {
		return "over " + grouped(tenants.MostCountedSubjects) + " registered subjects"
	}
	return plural(view.Configured.Subjects, "registered subject", "registered subjects")
}

// Subject returns the page of this tenant as a subject of the operator's own tenant.
func (view *tenantView) Subject() string {
	return subjectURL(view.Slug) + "?resource=" + check.QuotaResource
}

func (d *dashboard) tenant(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showTenant(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showTenant(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	return d.showTenantWith(w, r, v, status, f, nil)
}

func (d *dashboard) showTenantWith(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form, link *newLink) error {
	ctx := r.Context()
	tenant, err := d.Store.TenantBySlugOrID(ctx, v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	view := tenantView{
		ID: tenant.ID.String(), OwnName: tenant.Name, Platform: tenant.ID == v.actor().TenantID(), Version: tenant.Version, Partitions: tenant.Partitions, sentForms: sentForms{f}, Link: link,
	}
	view.Shown = &form{values: r.URL.Query()}
	if view.Shown.Get("period") != custom {
		if view.Period, err = periodOf(nameOr(view.Shown.Get("period"), "24h")); err != nil {
			return err
		}
	} else if customSpan(view.Shown, v.now); view.Shown.invalid() {
		return &tenants.InvalidError{Fields: view.Shown.stray()}
	}
	if view.Tiers, err = d.planOptions(ctx, v, "Default tier"); err != nil {
		return err
	}
	view.tenantRow = tenantRowOf(&tenant, tenants.Served{}, view.Tiers)
	if err := d.readTenant(ctx, v, &view, &tenant); err != nil {
		return err
	}
	if !view.Platform {
		if err := d.readQuotas(ctx, v, &view); err != nil {
			return err
		}
		view.Uses = d.quotasOf(ctx, view.Slug, v.now)
		if view.Bounds, err = d.boundsOf(ctx, tenant.ID); err != nil {
			return err
		}
	}
	if n, known := d.countersOf(ctx, tenant.ID, d.counterBound(view.Slug)); known {
		view.Counters = "About " + countersText(n) + " in Redis"
		if n == 0 {
			view.Counters = "Few or none in Redis"
		}
	}
	v.frame.Title = view.Name
	return d.render(w, r, status, tenantPage(v.frame, &view))
}

// readTenant counts the tenant's objects and checks. It reads as the server itself, in the tenant
// that the operator names.
func (d *dashboard) readTenant(ctx context.Context, v *visit, view *tenantView, t *tenants.Tenant) (err error) {
	within := tenants.AsSystem(t.ID, "operator")
	if view.Configured, err = d.Store.Configured(ctx, within); err != nil {
		return err
	}
	members, _, err := d.Store.Members(ctx, within, tenants.Page{Limit: 1000})
	if err != nil {
		return err
	}
	for i := range members {
		switch m := &members[i]; {
		case m.Role != tenants.Owner:
		case m.State == tenants.MemberInvited:
			view.Invited = append(view.Invited, m.Email)
		default:
			view.Owners = append(view.Owners, m.Email)
		}
	}
	title, span := "Checks in the last "+strings.TrimPrefix(view.Period.Name, "1 "), stretchUntil(v.now, view.Period.Grain, view.Period.Grains)
	if view.Shown.Get("period") == custom {
		title, span = "Checks from "+rangeText(view.Shown), customSpan(view.Shown, v.now)
	}
	if view.Chart, err = d.series(ctx, within, inUTC(title), span, tenants.UsageQuery{}); err != nil {
		return err
	}
	values := copied(view.Shown.values)
	values.Set("period", nameOr(values.Get("period"), view.Period.Value))
	view.Chart.Log = values.Get("scale") == scaleLog
	view.Chart.Scale, view.Chart.Zoom = otherScale(view.Path(), values, view.Chart.Log), view.Path()+"?"+zoomParameters(values).Encode()
	if full := unzoomed(values); full != nil {
		view.Chart.Whole = view.Path() + "?" + full.Encode()
	}
	return nil
}

// readQuotas reads the tenant as a subject of the operator's own tenant: its tier, and what remains
// of its quotas.
func (d *dashboard) readQuotas(ctx context.Context, v *visit, view *tenantView) error {
	registered, err := d.Store.SubjectByName(ctx, v.actor(), view.Slug)
	if err != nil && !errors.Is(err, tenants.ErrNotFound) {
		return err
	}
	view.OwnTier = registered.Plan
	policy, err := d.Policies.Get(ctx, v.actor().TenantID())
	if err != nil {
		return err
	}
	left := d.Checker.Inspect(ctx, policy, check.Request{Subject: view.Slug, Resource: check.QuotaResource})
	view.TierInUse, view.Degraded = left.Plan, left.Degraded
	if left.State != check.Active {
		view.Blocked = left.State.String()
	}
	quotas, tiers := map[string]bool{}, d.planNames(ctx, v.actor())
	for i := range left.Rules {
		if left.Rules[i].Limit == noQuota { // a quota of another tenant
			continue
		}
		quota := limitViewOf(&left.Rules[i], tiers)
		if quota.Denies && policy.FailsOpen(view.Slug) {
			quota.Denies, quota.Note, quota.Tone = false, "Used up, checks pass", "warn"
		}
		view.Quotas = append(view.Quotas, quota)
		quotas[left.Rules[i].Rule.Slug] = true
	}
	for _, h := range left.Hidden {
		if h.Reason == check.NotBySubject {
			view.Shared = append(view.Shared, option{h.Rule.Slug, nameOr(h.Rule.Name, h.Rule.Slug)})
		}
	}
	for i := range registered.Overrides {
		if o := &registered.Overrides[i]; quotas[o.Rule] {
			view.Overrides = append(view.Overrides, overrideViewOf(o, v))
		}
	}
	return nil
}

// tenantAction changes a tenant, and returns the message about it.
type tenantAction func(d *dashboard, ctx context.Context, v *visit, t *tenants.Tenant, f *form) (said string, err error)

var tenantActions = map[string]tenantAction{
	"suspend":    setTenantState(tenants.TenantSuspended, "Tenant %s suspended. Its API keys stop working within a second, and its members are signed out."),
	"reopen":     setTenantState(tenants.TenantActive, "Tenant %s reopened."),
	"rename":     (*dashboard).renameTenant,
	"partitions": (*dashboard).partitionTenant,
	"tier":       onTenantsSubject((*dashboard).planSubject),
	"quota":      onTenantsSubject((*dashboard).overrideSubject),
	"unquota":    onTenantsSubject((*dashboard).removeOverride),
	"delete":     (*dashboard).deleteTenant,
}

// actOnTenant executes a form of a tenant's page.
func (d *dashboard) actOnTenant(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	tenant, err := d.Store.TenantBySlugOrID(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	if f.Get("do") == "invite" {
		return d.inviteOwner(w, r, v, &tenant, f)
	}
	act, known := tenantActions[f.Get("do")]
	if !known {
		return errForm
	}
	reason, said := "", ""
	if f.Get("do") != "rename" {
		reason = f.reason()
	}
	if !f.invalid() {
		said, err = act(d, tenants.WithReason(r.Context(), reason), v, &tenant, f)
	}
	status, err := f.outcome(err)
	if err != nil {
		return err
	}
	if status != 0 {
		return d.showTenant(w, r, v, status, f)
	}
	d.followTenant(r.Context(), tenant.ID)
	to := tenantURL(tenant.Slug)
	if f.Get("do") == "delete" {
		to = "/tenants"
	}
	return d.done(w, r, to, said)
}

// inviteOwner invites an owner into a tenant. Without mail, the page shows the link once, because a
// redirect would have to contain it.
func (d *dashboard) inviteOwner(w http.ResponseWriter, r *http.Request, v *visit, t *tenants.Tenant, f *form) error {
	link, err := d.ownerInvitation(r.Context(), v, t, f.Get("email"))
	if status := refuseInvitation(w, f, err); status != 0 {
		return d.showTenant(w, r, v, status, f)
	}
	switch {
	case err != nil:
		return err
	case link.URL != "":
		return d.showTenantWith(w, r, v, http.StatusOK, &form{}, link)
	}
	return d.done(w, r, tenantURL(t.Slug), link.Email+" is invited as an owner.")
}

// ownerInvitation invites an owner as the server itself, because the operator is not a member of
// the tenant. The link is empty if it is sent by mail.
func (d *dashboard) ownerInvitation(ctx context.Context, v *visit, t *tenants.Tenant, email string) (*newLink, error) {
	made, err := d.Store.InviteMember(ctx, tenants.AsSystem(t.ID, "operator "+v.session.Email), email, tenants.Owner)
	if err != nil {
		return nil, err
	}
	SendInvitation(d.Store, d.Mail, d.Logger, made)
	return &newLink{made.Email, UnsentLink(d.Mail, made)}, nil
}

// setTenantState returns the action that sets a tenant's state. said is the message, with the
// tenant's slug.
func setTenantState(state, said string) tenantAction {
	return func(d *dashboard, ctx context.Context, v *visit, t *tenants.Tenant, f *form) (string, error) {
		_, err := d.Store.EditTenantByRef(ctx, v.actor(), t.ID.String(), f.match(), func(t *tenants.Tenant) error { t.State = state; return nil })
		return strings.Replace(said, "%s", t.Slug, 1), err
	}
}

// onTenantsSubject returns an action on the subject of the operator's own tenant that represents
// the tenant: its plan is the tenant's tier, its overrides are the tenant's quotas.
func onTenantsSubject(do func(*dashboard, context.Context, *subjectChange) (string, error)) tenantAction {
	return func(d *dashboard, ctx context.Context, v *visit, t *tenants.Tenant, f *form) (string, error) {
		if t.Slug == tenants.PlatformSlug {
			f.problem = "The operator’s tenant has no tier and no quota."
			return "", nil
		}
		return do(d, ctx, &subjectChange{form: f, visit: v, subject: t.Slug, reason: f.Get("reason")})
	}
}

func (d *dashboard) renameTenant(ctx context.Context, v *visit, t *tenants.Tenant, f *form) (string, error) {
	_, err := d.Store.EditTenantByRef(ctx, v.actor(), t.ID.String(), f.match(), func(t *tenants.Tenant) error {
		t.Name = f.Get("name")
		return nil
	})
	return "Saved.", err
}

func (d *dashboard) partitionTenant(ctx context.Context, v *visit, t *tenants.Tenant, f *form) (string, error) {
	n := int(f.integer("partitions")) // without a number 0, which is refused
	_, err := d.Store.EditTenantByRef(ctx, v.actor(), t.ID.String(), f.match(), func(t *tenants.Tenant) error {
		t.Partitions = n
		return nil
	})
	return "Partitions of " + t.Slug + " changed.", err
}

// deleteTenant deletes a tenant permanently, after its slug was typed.
func (d *dashboard) deleteTenant(ctx context.Context, v *visit, t *tenants.Tenant, f *form) (string, error) {
	if f.Get("slug") != t.Slug {
		f.wrong("slug", limit.MustBe("%s", t.Slug))
		return "", nil
	}
	return "Tenant " + t.Slug + " deleted.", d.Store.DeleteTenant(ctx, v.actor(), t.ID.String(), f.match())
}

// NewQuota returns the page on which the operator creates a quota.
func (view *tenantView) NewQuota() string { return view.Path() + "/quota" }

// TierName returns the name of the tier that checks use.
func (view *tenantView) TierName() string { return nameOfOption(view.Tiers, view.TierInUse) }
