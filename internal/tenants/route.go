package tenants

import (
	"context"
	"errors"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants/db"
)

// Route is a stored route: how a gateway's requests become checks.
type Route struct {
	route.Route
	ID        uuid.UUID
	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// CreateRoute creates a route. Errors: *InvalidError; *ConflictError with CodeSlugTaken.
func (s *Store) CreateRoute(ctx context.Context, a Actor, r route.Route) (out Route, err error) {
	if err := invalidIf(r.Validate()); err != nil {
		return Route{}, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		switch _, err := c.route(ctx, r.Slug); {
		case err == nil:
			conflict := uniqueConflicts["routes_tenant_id_slug_key"]
			return &conflict
		case !errors.Is(err, ErrNotFound):
			return err
		}
		var err error
		out, err = c.createRoute(ctx, r)
		return err
	})
	return out, err
}

// PutRoute creates a route or replaces the one with its slug; created reports which. Errors:
// *InvalidError, ErrPreconditionFailed.
func (s *Store) PutRoute(ctx context.Context, a Actor, r route.Route, m Match) (out Route, created bool, err error) {
	if err := invalidIf(r.Validate()); err != nil {
		return Route{}, false, err
	}
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.route(ctx, r.Slug)
		switch {
		case errors.Is(err, ErrNotFound):
			if err := m.missing(); err != nil {
				return err
			}
			created = true
			out, err = c.createRoute(ctx, r)
			return err
		case err != nil:
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		out, err = c.replaceRoute(ctx, old, r)
		return err
	})
	return out, created && err == nil, err
}

// EditRoute calls edit to change the route; an error of edit is returned unchanged and nothing
// changes. Errors: ErrNotFound, ErrPreconditionFailed, *InvalidError (also for another slug).
func (s *Store) EditRoute(ctx context.Context, a Actor, slug string, m Match, edit func(*route.Route) error) (out Route, err error) {
	err = s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.route(ctx, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		r := old.Clone()
		if err := edit(&r); err != nil {
			return err
		}
		if r.Slug != old.Slug {
			return invalid("slug", isFixed("route"))
		}
		out, err = c.replaceRoute(ctx, old, r)
		return err
	})
	return out, err
}

// RouteBySlug returns a route, or ErrNotFound.
func (s *Store) RouteBySlug(ctx context.Context, a Actor, slug string) (out Route, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readRoute(ctx, q, a.tenant, slug)
		return err
	})
	return out, err
}

// Routes lists routes, newest first, and returns where the next page begins, "" at the end.
func (s *Store) Routes(ctx context.Context, a Actor, p Page) (out []Route, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.Routes(ctx, db.RoutesParams{TenantID: a.tenant, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.Route) uuid.UUID { return r.ID })
		out = make([]Route, len(rows))
		for i, row := range rows {
			out[i] = routeOf(row)
		}
		return nil
	})
	return out, next, err
}

// RouteSummary is a route without what it matches, which can be a hundred KB.
type RouteSummary struct {
	Slug, Name string
	Subject    []string
	NoSubject  route.NoSubject
	Fail       route.Fail
	Templates  int // how many it has
}

// RouteSummaries is Routes with summaries.
func (s *Store) RouteSummaries(ctx context.Context, a Actor, p Page) (out []RouteSummary, next string, err error) {
	after, err := p.after()
	if err != nil {
		return nil, "", err
	}
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.RouteSummaries(ctx, db.RouteSummariesParams{TenantID: a.tenant, After: after, Most: p.most()})
		if err != nil {
			return err
		}
		rows, next = cut(p, rows, func(r db.RouteSummariesRow) uuid.UUID { return r.ID })
		out = make([]RouteSummary, len(rows))
		for i, r := range rows {
			out[i] = RouteSummary{r.Slug, r.Name, r.Subject, route.NoSubject(r.NoSubject), route.Fail(r.Fail), int(r.Templates)}
		}
		return nil
	})
	return out, next, err
}

// RouteHead is a route without its templates and attributes, which can be a megabyte together.
type RouteHead struct {
	Slug, Name string
	Subject    []string
}

// RouteHeads returns all routes, newest first.
func (s *Store) RouteHeads(ctx context.Context, a Actor) (out []RouteHead, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		rows, err := q.RouteHeads(ctx, db.RouteHeadsParams{TenantID: a.tenant, Most: route.MaxRoutes})
		out = make([]RouteHead, len(rows))
		for i, r := range rows {
			out[i] = RouteHead{r.Slug, r.Name, r.Subject}
		}
		return err
	})
	return out, err
}

// DeleteRoute deletes a route. Errors: ErrNotFound, ErrPreconditionFailed.
func (s *Store) DeleteRoute(ctx context.Context, a Actor, slug string, m Match) error {
	return s.change(ctx, a, MayEdit, func(ctx context.Context, c *change) error {
		old, err := c.route(ctx, slug)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		if _, err := c.next(ctx, parts{policy: true}); err != nil {
			return err
		}
		return c.DeleteRoute(ctx, db.DeleteRouteParams{TenantID: c.tenant, ID: old.ID})
	})
}

func (c *change) route(ctx context.Context, slug string) (Route, error) {
	return readRoute(ctx, c.Queries, c.tenant, slug)
}

func readRoute(ctx context.Context, q *db.Queries, tenant uuid.UUID, slug string) (Route, error) {
	if !limit.ValidSlug(slug) {
		return Route{}, ErrNotFound
	}
	row, err := q.RouteBySlug(ctx, db.RouteBySlugParams{TenantID: tenant, Slug: slug})
	if err != nil {
		return Route{}, translate(err)
	}
	return routeOf(row), nil
}

func (c *change) createRoute(ctx context.Context, r route.Route) (Route, error) {
	n, err := c.CountRoutes(ctx, c.tenant)
	if err != nil {
		return Route{}, err
	}
	if n >= route.MaxRoutes {
		return Route{}, invalid("slug", limit.Wrong("Delete a route that is no longer needed.", "would be one route too many: a tenant may have %d", route.MaxRoutes))
	}
	version, err := c.next(ctx, parts{policy: true})
	if err != nil {
		return Route{}, err
	}
	row, err := c.insertRoute(ctx, newID(), r, version)
	if err != nil {
		return Route{}, err
	}
	return routeOf(row), nil
}

func (c *change) insertRoute(ctx context.Context, id uuid.UUID, r route.Route, version int64) (db.Route, error) {
	u := routeParams(c.tenant, id, r, version)
	return c.InsertRoute(ctx, db.InsertRouteParams{
		TenantID: u.TenantID, ID: u.ID, Slug: r.Slug, Name: u.Name, Description: u.Description, Subject: u.Subject, Hash: u.Hash,
		NoSubject: u.NoSubject, Resources: u.Resources, DefaultResource: u.DefaultResource, Cost: u.Cost, Attributes: u.Attributes,
		DeniedStatus: u.DeniedStatus, Fail: u.Fail, Version: u.Version,
	})
}

// replaceRoute writes r instead of old, if they differ.
func (c *change) replaceRoute(ctx context.Context, old Route, r route.Route) (Route, error) {
	if err := invalidIf(r.Validate()); err != nil {
		return Route{}, err
	}
	if sameRoute(old.Route, r) {
		return old, nil
	}
	version, err := c.next(ctx, parts{policy: true})
	if err != nil {
		return Route{}, err
	}
	row, err := c.UpdateRoute(ctx, routeParams(c.tenant, old.ID, r, version))
	if err != nil {
		return Route{}, err
	}
	return routeOf(row), nil
}

// sameRoute reports whether two routes of one slug are stored alike.
func sameRoute(a, b route.Route) bool {
	return reflect.DeepEqual(routeParams(uuid.Nil, uuid.Nil, a, 0), routeParams(uuid.Nil, uuid.Nil, b, 0))
}

func routeParams(tenant, id uuid.UUID, r route.Route, version int64) db.UpdateRouteParams {
	r = r.Clone()
	if r.Resources == nil {
		r.Resources = []route.Template{}
	}
	for i := range r.Resources {
		if t := &r.Resources[i]; t.Resource == t.Match {
			t.Resource = ""
		}
	}
	if r.Attributes == nil {
		r.Attributes = map[string]string{}
	}
	return db.UpdateRouteParams{
		TenantID: tenant, ID: id, Name: r.Name, Description: r.Description, Subject: r.Subject, Hash: string(r.Hash),
		NoSubject: string(r.NoSubject), Resources: r.Resources, DefaultResource: r.DefaultResource, Cost: r.Cost,
		Attributes: r.Attributes, DeniedStatus: int32(r.DeniedStatus), Fail: string(r.Fail), Version: version,
	}
}

func routeOf(row db.Route) Route {
	return Route{
		Route: route.Route{
			Slug: row.Slug, Name: row.Name, Description: row.Description, Subject: row.Subject, Hash: route.Hash(row.Hash),
			NoSubject: route.NoSubject(row.NoSubject), Resources: row.Resources, DefaultResource: row.DefaultResource, Cost: row.Cost,
			Attributes: row.Attributes, DeniedStatus: int(row.DeniedStatus), Fail: route.Fail(row.Fail),
		},
		ID: row.ID, Version: row.Version, CreatedAt: row.CreatedAt, UpdatedAt: row.UpdatedAt,
	}
}
