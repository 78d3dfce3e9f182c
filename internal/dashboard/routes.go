package dashboard

import (
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-chi/chi/v5"

	"weir/internal/route"
	"weir/internal/tenants"
)

type routeRow struct {
	Slug, Name, Path   string
	Subject, Resources string
	NoSubject, Fail    string
}

type routesView struct {
	Routes []routeRow
	Next   string // path of the next page; "": none
	Later  bool   // it is not the first page
}

// routes lists the tenant's routes.
func (d *dashboard) routes(w http.ResponseWriter, r *http.Request, v *visit) error {
	after := r.URL.Query().Get("after")
	routes, next, err := d.Store.RouteSummaries(r.Context(), v.actor(), tenants.Page{Limit: pageSize, After: after})
	if err != nil {
		return err
	}
	view := routesView{Later: after != ""}
	if next != "" {
		view.Next = withCursor("/routes", url.Values{}, next)
	}
	for i := range routes {
		s := &routes[i]
		view.Routes = append(view.Routes, routeRow{
			Slug: s.Slug, Name: nameOr(s.Name, s.Slug), Path: routeURL(s.Slug), Subject: strings.Join(s.Subject, ", "),
			Resources: plural(int64(s.Templates), "template", "templates"), NoSubject: noSubjectText(s.NoSubject), Fail: failText(s.Fail),
		})
	}
	v.frame.Title = "Routes"
	return d.render(w, r, http.StatusOK, routesPage(v.frame, &view))
}

// routeURL is the address of a route's page.
func routeURL(slug string) string { return objectURL("/routes/", slug) }

// The settings of a route in words.
func noSubjectText(n route.NoSubject) string {
	switch n {
	case route.AllowNoSubject:
		return "Allow, without counting"
	case route.CountByAddress:
		return "Count by the client’s address"
	case route.DenyNoSubject:
	}
	return "Deny"
}

func failText(f route.Fail) string {
	if f == route.FailOpen {
		return "Fail open (204)"
	}
	return "Fail closed (503)"
}

func hashText(h route.Hash) string {
	switch h {
	case route.HashAll:
		return "All values"
	case route.HashNone:
		return "No values"
	case route.HashSecrets:
	}
	return "Secrets"
}

type templateLine struct{ Match, Resource, Cost string }

// routePageView is a route with a tester for requests.
type routePageView struct {
	Slug, Name, Description string
	Version                 int64
	Form                    *form // of a refused form
	Facts                   []fact
	Templates               []templateLine
	DefaultResource, Cost   string
	Changed                 moment
	Test                    *form // the tested request
	Answer                  *routeAnswer
}

func (d *dashboard) route(w http.ResponseWriter, r *http.Request, v *visit) error {
	stored, err := d.Store.RouteBySlug(r.Context(), v.actor(), chi.URLParam(r, "slug"))
	if err != nil {
		return err
	}
	return d.showRoute(w, r, v, &stored, &routePageView{Form: &form{}}, http.StatusOK)
}

func (d *dashboard) showRoute(w http.ResponseWriter, r *http.Request, v *visit, stored *tenants.Route, view *routePageView, status int) error {
	view.Slug, view.Name, view.Description = stored.Slug, nameOr(stored.Name, stored.Slug), stored.Description
	view.Version, view.Changed = stored.Version, moment{stored.UpdatedAt}
	view.Facts = routeFacts(&stored.Route)
	view.DefaultResource, view.Cost = stored.DefaultResource, grouped(stored.Cost)
	for i := range stored.Resources {
		t := &stored.Resources[i]
		line := templateLine{t.Match, t.ResourceName(), view.Cost}
		if t.Cost != nil {
			line.Cost = grouped(*t.Cost)
		}
		view.Templates = append(view.Templates, line)
	}
	if view.Test == nil {
		view.Test = sampleRequest(&stored.Route)
	}
	v.frame.Title = view.Name
	return d.render(w, r, status, routePage(v.frame, view))
}

func routeFacts(r *route.Route) []fact {
	facts := []fact{
		{"Gateway path", "/v1/authorize/" + r.Slug, true},
		{"Subject", strings.Join(r.Subject, ", "), true},
		{"Hashed", hashText(r.Hash), false},
		{"If no source is present", noSubjectText(r.NoSubject), false},
	}
	for _, line := range attributeLines(r) {
		facts = append(facts, fact{"Attribute", line, true})
	}
	return append(facts,
		fact{"Status of a denial", itoa(int64(r.DeniedStatus)), false},
		fact{"If nothing is decided", failText(r.Fail), false})
}

func (d *dashboard) deleteRoute(w http.ResponseWriter, r *http.Request, v *visit, f *form) error {
	slug := chi.URLParam(r, "slug")
	err := d.Store.DeleteRoute(r.Context(), v.actor(), slug, f.match())
	if errors.Is(err, tenants.ErrPreconditionFailed) {
		stored, readErr := d.Store.RouteBySlug(r.Context(), v.actor(), slug)
		if readErr != nil {
			return readErr
		}
		f.problem = "Nothing deleted. Somebody else changed this route after you opened the page. The page shows the current route: review it, then try again."
		return d.showRoute(w, r, v, &stored, &routePageView{Form: f}, http.StatusPreconditionFailed)
	}
	if err != nil {
		return err
	}
	return d.done(w, r, "/routes", "Route “"+slug+"” deleted.")
}
