package dashboard

import (
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// operated makes a handler of a page for the operator only: for everybody else it does not exist.
func (d *dashboard) operated(handle func(http.ResponseWriter, *http.Request, *visit) error) http.HandlerFunc {
	return d.page(func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if !v.actor().Operator() {
			return tenants.ErrNotFound
		}
		return handle(w, r, v)
	})
}

// operates is operated for forms, which also create API keys and invite owners: it is proved.
func (d *dashboard) operates(handle formHandler) http.HandlerFunc {
	confirmed := d.confirmed(handle)
	return d.write(0, func(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
		if !v.actor().Operator() {
			return tenants.ErrNotFound
		}
		return confirmed(w, r, v, f)
	})
}

type tenantRow struct {
	Slug, Name      string
	State           string
	Blocked         string // as a subject of the operator: "blocked", "exempt" or ""
	Tier            string // name of the plan; "": the default one
	Allowed, Denied int64  // in the last 24 hours
	Counters        string // alive; "" if unknown
	Made            moment
}

// Path returns the tenant's page.
func (t tenantRow) Path() string { return tenantURL(t.Slug) }

func tenantURL(slug string) string { return "/tenants/" + url.PathEscape(slug) }

// tenantsView is a search for tenants, and the form for creating one.
type tenantsView struct {
	Search, State string
	Tenants       []tenantRow
	First, Next   string
	Later         bool
	Tiers         []option
	Sent          *form
}

func (view *tenantsView) values() url.Values {
	values := url.Values{}
	for name, value := range map[string]string{"q": view.Search, "state": view.State} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// servedHours is how many hours of checks the list of tenants counts, including the current one,
// like their pages.
const servedHours = 24

func (d *dashboard) tenants(w http.ResponseWriter, r *http.Request, v *visit) error {
	return d.showTenants(w, r, v, http.StatusOK, &form{})
}

func (d *dashboard) showTenants(w http.ResponseWriter, r *http.Request, v *visit, status int, f *form) error {
	ctx, query := r.Context(), r.URL.Query()
	view := tenantsView{Search: query.Get("q"), State: query.Get("state"), Later: query.Get("after") != "", Sent: f}
	list, next, err := d.Store.ListTenants(ctx, v.actor(), tenants.TenantFilter{Search: view.Search, State: view.State},
		tenants.Page{Limit: pageSize, After: query.Get("after")})
	if err != nil {
		return err
	}
	ids := make([]uuid.UUID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	served, err := d.Store.Served(ctx, v.actor(), ids, stretchUntil(v.now, usage.Hour, servedHours).From)
	if err != nil {
		return err
	}
	if view.Tiers, err = d.planOptions(ctx, v, "Default tier"); err != nil {
		return err
	}
	for i := range list {
		row := tenantRowOf(&list[i], served[list[i].ID], view.Tiers)
		if n, known := d.countersOf(ctx, list[i].ID, d.counterBound(row.Slug)); known {
			row.Counters = countersText(n)
		}
		view.Tenants = append(view.Tenants, row)
	}
	view.First = withCursor("/tenants", view.values(), "")
	if next != "" {
		view.Next = withCursor("/tenants", view.values(), next)
	}
	v.frame.Title = "Tenants"
	return d.render(w, r, status, tenantsPage(v.frame, &view))
}

// countersText returns an estimate in words. With a high bound, only a sample of counters is
// listed, so that a few of them may not be noticed.
func countersText(n int64) string {
	if n == 0 {
		return "few or none"
	}
	return grouped(n)
}

func tenantRowOf(t *tenants.Tenant, served tenants.Served, tiers []option) tenantRow {
	row := tenantRow{
		Slug: t.Slug, Name: nameOr(t.Name, t.Slug), State: t.State, Allowed: served.Allowed, Denied: served.Denied, Made: moment{t.CreatedAt},
	}
	if served.State != check.Active {
		row.Blocked = served.State.String()
	}
	for _, tier := range tiers {
		if served.Tier != "" && tier.Value == served.Tier {
			row.Tier = tier.Name
		}
	}
	return row
}

// createTenant creates a tenant, sets its tier, and shows its first key once.
func (d *dashboard) createTenant(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	ctx, tier := r.Context(), f.Get("tier")
	if tier != "" { // checked first, so that no tenant is created without its tier
		if _, err := d.Store.PlanBySlug(ctx, v.actor(), tier); err != nil {
			f.wrong("tier", limit.MustBe("one of the plans of the operator’s tenant"))
			return d.showTenants(w, r, v, http.StatusUnprocessableEntity, f)
		}
	}
	made, first, key, err := d.Store.CreateTenant(ctx, v.actor(), tenants.NewTenant{Slug: f.Get("slug"), Name: nameOr(f.Get("name"), f.Get("slug"))})
	if status := f.refuse(err); status != 0 {
		return d.showTenants(w, r, v, status, f)
	}
	if err != nil {
		return err
	}
	view := secretView{
		Name: first.Name + " of " + nameOr(made.Name, made.Slug), Secret: key.Secret(), Path: tenantURL(made.Slug), Checks: true,
		Note: "The key has all scopes in the new tenant. Give it only to the person who will run the tenant.",
	}
	if owner := f.Get("owner"); owner != "" {
		if view.Invited, err = d.ownerInvitation(ctx, v, &made, owner); err != nil {
			// The key is shown only here, so the page is shown in any case.
			d.Logger.Error("cannot invite the owner of a new tenant", "request_id", requestOf(ctx).id, "error", err)
			view.Invited, view.Note = nil, view.Note+" The owner was not invited. Check the email and invite them on the tenant's page."
		}
	}
	if tier != "" {
		change := &subjectChange{form: &form{values: url.Values{"plan": {tier}}}, visit: v, subject: made.Slug}
		if _, err := d.planSubject(ctx, change); err != nil {
			// The tenant exists and its key is shown only here, so the page is shown in any case.
			d.Logger.Error("cannot set the tier of a new tenant", "request_id", requestOf(ctx).id, "error", err)
			view.Note += " The tier was not set. Set it on the tenant's page."
		}
	}
	d.followTenant(ctx, made.ID) // so that its key works when the page is shown
	v.frame.Title = "New tenant"
	showsSecret(w)
	return d.render(w, r, http.StatusOK, secretPage(v.frame, &view))
}
