package dashboard

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// newQuotaView is the page on which the operator creates a quota: a rule of the operator's tenant
// that limits the checks of tenants.
type newQuotaView struct {
	Form   *form
	Slug   string // of the tenant whose page led here
	Name   string
	Effect *quotaEffect
}

// Path returns the address of the form.
func (view *newQuotaView) Path() string { return tenantURL(view.Slug) + "/quota" }

// The values of the fields of the form.
const (
	quotaForAll = "all"
	quotaForOne = "one"
)

// quotaWindows are the windows of a quota, which begin at the same time for all tenants.
var quotaWindows = []option{{"month", "Calendar month"}, {"week", "Calendar week"}, {"day", "Day"}, {"1h", "Hour"}}

// noQuota is the limit of tenants that a quota for one tenant does not limit. No tenant reaches it.
const noQuota = int64(1_000_000_000_000)

// quotaEffect shows who would be over a quota today.
type quotaEffect struct {
	Wrong    bool   // the limit is missing or invalid
	Sentence string // what the quota would do
	Since    string // when the present window began
	Compared int
	More     bool // there are more tenants than were compared
	Over     []quotaTenant
	Near     []quotaTenant
}

// quotaTenant is a tenant with its checks in the present window.
type quotaTenant struct {
	Slug, Name string
	Used       int64
	Permille   int64 // of the limit
}

// Path returns the tenant's page.
func (t *quotaTenant) Path() string { return tenantURL(t.Slug) }

// mostQuotaTenants is how many tenants are compared with a quota.
const mostQuotaTenants = 500

// newQuotaPage shows the form, and who would be over the quota. With fragment=effect it returns
// only the latter.
func (d *dashboard) newQuotaPage(w http.ResponseWriter, r *http.Request, v *visit) error {
	values := url.Values{"scope": {quotaForOne}, "window": {"month"}, "mode": {limit.Shadow.String()}}
	for name, sent := range r.URL.Query() {
		values[name] = sent
	}
	return d.showNewQuota(w, r, v, &form{values: values}, http.StatusOK)
}

func (d *dashboard) showNewQuota(w http.ResponseWriter, r *http.Request, v *visit, f *form, status int) error {
	tenant, err := d.quotaTenant(r, v)
	if err != nil {
		return err
	}
	view := newQuotaView{Form: f, Slug: tenant.Slug, Name: nameOr(tenant.Name, tenant.Slug)}
	if view.Effect, err = d.quotaEffect(r.Context(), v, &tenant, f); err != nil {
		return err
	}
	if r.URL.Query().Get("fragment") == "effect" {
		return d.render(w, r, http.StatusOK, quotaEffectPanel(view.Effect))
	}
	v.frame.Title = "New quota"
	return d.render(w, r, status, newQuotaPage(v.frame, &view))
}

// quotaTenant returns the tenant in the address. The operator's own has no quota.
func (d *dashboard) quotaTenant(r *http.Request, v *visit) (tenants.Tenant, error) {
	tenant, err := d.Store.TenantBySlugOrID(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err == nil && tenant.ID == v.actor().TenantID() {
		return tenant, tenants.ErrNotFound
	}
	return tenant, err
}

// quotaRule reads the form. Errors are added to it.
func quotaRule(f *form, slug string) (rule limit.Rule, units int64) {
	window, err := limit.ParseWindow(f.Get("window"))
	if err != nil || !slices.ContainsFunc(quotaWindows, func(o option) bool { return o.Value == f.Get("window") }) {
		f.wrong("window", oneOfTheList)
	}
	mode, err := limit.ParseMode(f.Get("mode"))
	if err != nil || mode == limit.Off {
		f.wrong("mode", limit.MustBe("shadow or enforce"))
	}
	if scope := f.Get("scope"); scope != quotaForAll && scope != quotaForOne {
		f.wrong("scope", oneOfTheList)
	}
	if f.Get("limit") == "" {
		f.wrong("limit", isRequired)
	}
	units = f.integer("limit")
	if f.Error("limit") == "" && (units < 1 || units >= noQuota) {
		f.wrong("limit", outsideQuota)
	}
	rule = limit.NewRule("")
	rule.Name, rule.Slug = f.Get("name"), f.Get("slug")
	if rule.Name == "" {
		rule.Name = "Checks per " + quotaUnit(f.Get("window"))
		if f.Get("scope") == quotaForOne {
			rule.Name += " of " + slug
		}
	}
	if rule.Slug == "" {
		rule.Slug = quotaSlug(rule.Name)
	}
	rule.Resource, rule.Algorithm, rule.Window, rule.Mode = check.QuotaResource, limit.FixedWindow, window, mode
	rule.By, rule.Limit = []string{"subject"}, units
	if f.Get("scope") == quotaForOne {
		rule.Limit = noQuota
	}
	return rule, units
}

// quotaUnit names a window in a sentence.
func quotaUnit(window string) string {
	if window == "1h" {
		return "hour"
	}
	return window
}

// quotaSlug makes a slug of a name.
func quotaSlug(name string) string {
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	slug := strings.Join(words, "-")
	return strings.Trim(slug[:min(len(slug), limit.MaxSlugBytes)], "-")
}

// createQuota creates the rule. A quota for one tenant is an override for it, of a rule that limits
// nobody else.
func (d *dashboard) createQuota(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	tenant, err := d.quotaTenant(r, v)
	if err != nil {
		return err
	}
	rule, units := quotaRule(f, tenant.Slug)
	reason := f.reason()
	f.validate(&rule)
	if f.invalid() {
		return d.showNewQuota(w, r, v, f, http.StatusUnprocessableEntity)
	}
	ctx := tenants.WithReason(r.Context(), reason)
	made, err := d.Store.CreateRule(ctx, v.actor(), rule)
	if status := f.refuseRule(err); err != nil {
		if status == 0 {
			return err
		}
		return d.showNewQuota(w, r, v, f, status)
	}
	if f.Get("scope") == quotaForOne {
		own := tenants.Override{Rule: made.Slug, Limit: limit.Limit{Limit: units}, Reason: reason}
		if _, _, err := d.Store.PutOverride(ctx, v.actor(), tenant.Slug, own, tenants.Match{}); err != nil {
			return err
		}
	}
	said := "Quota “" + nameOr(made.Name, made.Slug) + "” created and enforced."
	if made.Mode == limit.Shadow {
		said = "Quota “" + nameOr(made.Name, made.Slug) + "” created in shadow. It rejects nothing until you enforce it on its page."
	}
	return d.done(w, r, tenantURL(tenant.Slug), said)
}

// quotaEffect compares the quota with the checks of the present window.
func (d *dashboard) quotaEffect(ctx context.Context, v *visit, tenant *tenants.Tenant, f *form) (*quotaEffect, error) {
	tried := &form{values: f.values} // the page shows errors only after the form was sent
	rule, units := quotaRule(tried, tenant.Slug)
	if tried.invalid() {
		return &quotaEffect{Wrong: true}, nil
	}
	since := windowStart(f.Get("window"), v.now.UTC())
	out := &quotaEffect{Since: since.Format("2 Jan, 15:04 UTC")}
	list := []tenants.Tenant{*tenant}
	if f.Get("scope") == quotaForAll {
		all, next, err := d.Store.ListTenants(ctx, v.actor(), tenants.TenantFilter{}, tenants.Page{Limit: mostQuotaTenants})
		if err != nil {
			return nil, err
		}
		list, out.More = all, next != ""
	}
	ids := make([]uuid.UUID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	served, err := d.Store.Served(ctx, v.actor(), ids, since)
	if err != nil {
		return nil, err
	}
	for i := range list {
		t := &list[i]
		if t.ID == v.actor().TenantID() {
			continue
		}
		out.Compared++
		used := served[t.ID].Allowed + served[t.ID].Denied
		line := quotaTenant{Slug: t.Slug, Name: nameOr(t.Name, t.Slug), Used: used, Permille: min(fullQuota, int64(1000*float64(used)/float64(units)))}
		switch {
		case used > units:
			out.Over = append(out.Over, line)
		case line.Permille >= nearQuota:
			out.Near = append(out.Near, line)
		}
	}
	for _, lines := range [][]quotaTenant{out.Over, out.Near} {
		slices.SortFunc(lines, func(a, b quotaTenant) int { return int(min(1, max(-1, b.Used-a.Used))) })
	}
	out.Sentence = quotaSentence(f, nameOr(tenant.Name, tenant.Slug), units, rule.Mode)
	return out, nil
}

// quotaSentence says what a quota does.
func quotaSentence(f *form, tenant string, units int64, mode limit.Mode) string {
	who := "Each tenant"
	if f.Get("scope") == quotaForOne {
		who = "Only " + tenant
	}
	text := who + " can send " + grouped(units) + " checks per " + quotaUnit(f.Get("window")) + "."
	if mode == limit.Shadow {
		return text + " In shadow, further checks are only reported."
	}
	return text + " Further checks are rejected until the next " + quotaUnit(f.Get("window")) + "."
}

// windowStart returns when the present window of a quota began.
func windowStart(window string, now time.Time) time.Time {
	day := now.Truncate(24 * time.Hour)
	switch window {
	case "month":
		return time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	case "week":
		return day.AddDate(0, 0, -(int(day.Weekday())+6)%7)
	case "day":
		return day
	}
	return now.Truncate(time.Hour)
}
