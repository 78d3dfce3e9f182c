package api

import (
	"context"
	"time"

	"weir/internal/route"
	"weir/internal/tenants"
)

// Route defines how the requests of a gateway become checks, as the API shows it.
type Route struct {
	ID              string            `json:"id" format:"uuid"`
	Slug            string            `json:"slug" doc:"Cannot be changed. The gateway asks /v1/authorize/SLUG"`
	Name            string            `json:"name"`
	Description     string            `json:"description"`
	Subject         []string          `json:"subject" doc:"Sources of the subject; the first one that is present counts"`
	Hash            string            `json:"hash" enum:"secrets,all,none"`
	NoSubject       string            `json:"no_subject" enum:"deny,allow,ip"`
	Resources       []RouteTemplate   `json:"resources" doc:"Templates, tried in this order"`
	DefaultResource string            `json:"default_resource" doc:"The resource of requests that match no template"`
	Cost            int64             `json:"cost" doc:"Units of requests whose template has no cost of its own"`
	Attributes      map[string]string `json:"attributes" doc:"Sources of attributes, by the name of the attribute"`
	DeniedStatus    int               `json:"denied_status" enum:"429,403"`
	Fail            string            `json:"fail" enum:"closed,open"`
	CreatedAt       time.Time         `json:"created_at"`
	UpdatedAt       time.Time         `json:"updated_at"`
	Version         int64             `json:"version"`
}

// RouteTemplate is one template of a route, as the API shows it.
type RouteTemplate struct {
	Match    string `json:"match"`
	Resource string `json:"resource" doc:"The resource of these requests; if it was not set, the same as match"`
	Cost     *int64 `json:"cost" doc:"Units; null: the route's cost"`
}

// RouteTemplateInput is one template of a route in a body.
type RouteTemplateInput struct {
	Match    string           `json:"match" doc:"A path such as /orders/{id} or /files/{path...}, with or without a method before it: GET /orders/{id}; over gRPC also entries such as ?user={}. Up to 256 bytes"`
	Resource Optional[string] `json:"resource,omitempty" doc:"The resource of these requests, up to 256 bytes without *; default: the same as match"`
	Cost     Optional[int64]  `json:"cost,omitempty" doc:"Units, 0 to 10^15; default: the route's cost"`
}

// RouteFields are the fields of a route that a POST or PUT may omit and a PATCH may clear.
type RouteFields struct {
	Name            Optional[string]               `json:"name,omitempty" doc:"Up to 200 characters; default: the slug"`
	Description     Optional[string]               `json:"description,omitempty" doc:"Up to 2000 characters"`
	Hash            Optional[string]               `json:"hash,omitempty" enum:"secrets,all,none" doc:"Which values are replaced by sha256:HEX. secrets (default): cookies, Authorization, headers such as X-Api-Key"`
	NoSubject       Optional[string]               `json:"no_subject,omitempty" enum:"deny,allow,ip" doc:"If no source is present: deny the request (default), allow it without counting, or count by the client's address"`
	Resources       Optional[[]RouteTemplateInput] `json:"resources,omitempty" doc:"Templates, tried in this order; default none"`
	DefaultResource Optional[string]               `json:"default_resource,omitempty" doc:"The resource of requests that match no template; default default"`
	Cost            Optional[int64]                `json:"cost,omitempty" doc:"Units of requests whose template has no cost of its own; default 1"`
	DeniedStatus    Optional[int64]                `json:"denied_status,omitempty" doc:"Status of a denial; 403 for gateways that pass on only that one. Default 429"`
	Fail            Optional[string]               `json:"fail,omitempty" enum:"closed,open" doc:"What the gateway is told if nothing can be decided: 503 (closed, the default) or 204 (open)"`
}

// RouteCreate is the body of POST /v1/routes.
type RouteCreate struct {
	Slug    string   `json:"slug" doc:"1 to 63 of a-z, 0-9 and -; cannot be changed later"`
	Subject []string `json:"subject" doc:"1 to 8 sources: header:NAME, cookie:NAME, jwt:CLAIM, ip or, over gRPC, descriptor; the first one that is present counts"`
	RouteFields
	Attributes Optional[map[string]string] `json:"attributes,omitempty" doc:"Sources of attributes, by the name of the attribute; default none"`
}

// RoutePut is the body of PUT /v1/routes/{route}: the path names the route.
type RoutePut struct {
	Slug    Optional[string] `json:"slug,omitempty" doc:"If sent, must equal the path"`
	Subject []string         `json:"subject" doc:"As for POST"`
	RouteFields
	Attributes Optional[map[string]string] `json:"attributes,omitempty" doc:"As for POST"`
}

// RoutePatch is the merge patch of PATCH /v1/routes/{route}.
type RoutePatch struct {
	Slug    Optional[string]   `json:"slug,omitempty" doc:"Cannot be changed"`
	Subject Optional[[]string] `json:"subject,omitempty" doc:"As for POST"`
	RouteFields
	Attributes Optional[map[string]Optional[string]] `json:"attributes,omitempty" doc:"null removes an attribute"`
}

// RoutePath names a route.
type RoutePath struct {
	Route string `path:"route" doc:"Slug of the route"`
}

func routeLocation(slug string) string { return "/v1/routes/" + slug }

func routeAnswer(r tenants.Route) Route {
	out := Route{
		ID: r.ID.String(), Slug: r.Slug, Name: r.Name, Description: r.Description, Subject: r.Subject, Hash: string(r.Hash),
		NoSubject: string(r.NoSubject), Resources: make([]RouteTemplate, len(r.Resources)), DefaultResource: r.DefaultResource,
		Cost: r.Cost, Attributes: r.Attributes, DeniedStatus: r.DeniedStatus, Fail: string(r.Fail),
		CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Version: r.Version,
	}
	for i, t := range r.Resources {
		out.Resources[i] = RouteTemplate{Match: t.Match, Resource: t.ResourceName(), Cost: t.Cost}
	}
	return out
}

// apply sets r's fields from a body; a field that is null gets its default.
func (f *RouteFields) apply(r *route.Route) {
	def := route.New(r.Slug)
	r.Name = f.Name.patch(r.Name, def.Name)
	r.Description = f.Description.patch(r.Description, "")
	r.Hash = route.Hash(f.Hash.patch(string(r.Hash), string(def.Hash)))
	r.NoSubject = route.NoSubject(f.NoSubject.patch(string(r.NoSubject), string(def.NoSubject)))
	r.DefaultResource = f.DefaultResource.patch(r.DefaultResource, def.DefaultResource)
	r.Cost = f.Cost.patch(r.Cost, def.Cost)
	r.DeniedStatus = int(f.DeniedStatus.patch(int64(r.DeniedStatus), int64(def.DeniedStatus)))
	r.Fail = route.Fail(f.Fail.patch(string(r.Fail), string(def.Fail)))
	if !f.Resources.Set {
		return
	}
	r.Resources = make([]route.Template, len(f.Resources.Value))
	for i, in := range f.Resources.Value {
		r.Resources[i] = route.Template{Match: in.Match, Resource: in.Resource.or("")}
		if in.Cost.given() {
			r.Resources[i].Cost = &in.Cost.Value
		}
	}
}

func (in *RouteCreate) route() route.Route {
	r := route.New(in.Slug)
	r.Subject, r.Attributes = in.Subject, in.Attributes.or(nil)
	in.apply(&r)
	return r
}

func (a *admin) listRoutes(ctx context.Context, in *struct{ PageParams }) (*page[Route], error) {
	return listPage(ctx, a, "routes", in.PageParams, routeAnswer, func(p tenants.Page) ([]tenants.Route, string, error) {
		return a.store.Routes(ctx, actorFrom(ctx), p)
	})
}

func (a *admin) createRoute(ctx context.Context, in *struct{ Body RouteCreate }) (*object[Route], error) {
	made, err := a.store.CreateRoute(ctx, actorFrom(ctx), in.Body.route())
	if err != nil {
		return nil, err
	}
	return stored(routeAnswer(made), made.Version, true, routeLocation(made.Slug)), nil
}

func (a *admin) getRoute(ctx context.Context, in *RoutePath) (*object[Route], error) {
	r, err := a.store.RouteBySlug(ctx, actorFrom(ctx), in.Route)
	if err != nil {
		return nil, err
	}
	return found(routeAnswer(r), r.Version), nil
}

func (a *admin) putRoute(ctx context.Context, in *struct {
	RoutePath
	Body RoutePut
}) (*object[Route], error) {
	create := RouteCreate{Slug: in.Route, Subject: in.Body.Subject, RouteFields: in.Body.RouteFields, Attributes: in.Body.Attributes}
	r := create.route()
	if errs := mismatch(in.Body.Slug, "/slug", in.Route); len(errs) > 0 {
		return nil, invalid(append(errs, besides(errs, problemFields(r.Validate()))...)...)
	}
	put, created, err := a.store.PutRoute(ctx, actorFrom(ctx), r, conditionsFrom(ctx).match)
	if err != nil {
		return nil, pathField(err, "/slug", "route")
	}
	return stored(routeAnswer(put), put.Version, created, routeLocation(put.Slug)), nil
}

func (a *admin) patchRoute(ctx context.Context, in *struct {
	RoutePath
	Body RoutePatch
}) (*object[Route], error) {
	b := &in.Body
	r, err := a.store.EditRoute(ctx, actorFrom(ctx), in.Route, conditionsFrom(ctx).match, func(r *route.Route) error {
		errs := mismatch(b.Slug, "/slug", in.Route)
		b.Subject.refuseNull(&errs, "/subject")
		r.Subject = b.Subject.patch(r.Subject, r.Subject)
		b.apply(r)
		b.mergeAttributes(r)
		if len(errs) == 0 {
			return nil
		}
		return invalid(append(errs, besides(errs, problemFields(r.Validate()))...)...)
	})
	if err != nil {
		return nil, err
	}
	return found(routeAnswer(r), r.Version), nil
}

// mergeAttributes merges the attributes of the body into the route's attributes.
func (b *RoutePatch) mergeAttributes(r *route.Route) {
	switch {
	case !b.Attributes.Set:
		return
	case b.Attributes.Null:
		r.Attributes = nil
		return
	case r.Attributes == nil:
		r.Attributes = map[string]string{}
	}
	for name, source := range b.Attributes.Value {
		if source.Null {
			delete(r.Attributes, name)
		} else {
			r.Attributes[name] = source.Value
		}
	}
}

func (a *admin) deleteRoute(ctx context.Context, in *RoutePath) error {
	return a.store.DeleteRoute(ctx, actorFrom(ctx), in.Route, conditionsFrom(ctx).match)
}
