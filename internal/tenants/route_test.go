package tenants_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"weir/internal/route"
	"weir/internal/tenants"
)

// byHeader returns a route whose subject is a header.
func byHeader(slug string) route.Route {
	r := route.New(slug)
	r.Subject = []string{"header:X-User"}
	return r
}

func mustRoute(t *testing.T, s *tenants.Store, a tenants.Actor, r route.Route) tenants.Route {
	t.Helper()
	out, err := s.CreateRoute(t.Context(), a, r)
	require.NoError(t, err)
	return out
}

// fullRoute returns a route with a value in every field.
func fullRoute(slug string) route.Route {
	return route.Route{
		Slug: slug, Name: "Shop", Description: "In front of the shop", Subject: []string{"jwt:sub", "cookie:sid", "ip"}, Hash: route.HashAll,
		NoSubject: route.CountByAddress, DefaultResource: "other", Cost: 2, DeniedStatus: 403, Fail: route.FailOpen,
		Resources: []route.Template{
			{Match: "GET /orders/{id}"}, {Match: "POST /orders", Resource: "orders:create", Cost: ptr(int64(0))}, {Match: "/files/{path...}", Cost: ptr(int64(9))},
		},
		Attributes: map[string]string{"ip": "ip", "a.b": "header:X-Region"},
	}
}

// A route is read as it was written, has its own version, and is part of the policy.
func TestRoutes(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	before := versionsOf(t, d, a)
	full := fullRoute("shop")
	made := mustRoute(t, s, a, full)
	require.Equal(t, full, made.Route)
	require.Greater(t, versionsOf(t, d, a).policy, before.policy)
	plain := mustRoute(t, s, a, byHeader("plain"))

	got, err := s.RouteBySlug(ctx, a, "shop")
	require.NoError(t, err)
	require.Equal(t, made, got)
	listed, next, err := s.Routes(ctx, a, tenants.Page{Limit: 1})
	require.NoError(t, err)
	require.Equal(t, []tenants.Route{plain}, listed)
	listed, next, err = s.Routes(ctx, a, tenants.Page{Limit: 1, After: next})
	require.NoError(t, err)
	require.Equal(t, []tenants.Route{made}, listed)
	require.Empty(t, next)
	require.ElementsMatch(t, []route.Route{full, plain.Route}, policyOf(t, s, a.TenantID()).Routes)

	// An equal route is not written.
	same, created, err := s.PutRoute(ctx, a, full, tenants.Match{})
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, made, same)
	edited, err := s.EditRoute(ctx, a, "shop", at(made.Version), func(r *route.Route) error {
		r.Resources[0].Cost = ptr(int64(3))
		r.Attributes["ip"] = "header:X-Address"
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, edited.Version, made.Version)
	require.InDelta(t, 3, *edited.Resources[0].Cost, 0)
	_, err = s.EditRoute(ctx, a, "shop", at(made.Version), func(*route.Route) error { return nil })
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	_, err = s.EditRoute(ctx, a, "shop", tenants.Match{}, func(r *route.Route) error { r.Slug = "other"; return nil })
	requireInvalid(t, err, "slug")
	_, err = s.CreateRoute(ctx, a, full)
	var taken *tenants.ConflictError
	require.ErrorAs(t, err, &taken)
	require.Equal(t, tenants.CodeSlugTaken, taken.Code)

	// The other tenant is not affected.
	_, err = s.RouteBySlug(ctx, b, "shop")
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.ErrorIs(t, s.DeleteRoute(ctx, b, "shop", tenants.Match{}), tenants.ErrNotFound)
	require.Empty(t, policyOf(t, s, b.TenantID()).Routes)

	require.NoError(t, s.DeleteRoute(ctx, a, "shop", tenants.Match{}))
	require.Equal(t, []route.Route{plain.Route}, policyOf(t, s, a.TenantID()).Routes)
	_, err = s.RouteBySlug(ctx, a, "shop")
	require.ErrorIs(t, err, tenants.ErrNotFound)
}

// The trail has a row for each change of a route, with the differences.
func TestRoutesAreAudited(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s, ctx := d.Store, t.Context()
	mustRoute(t, s, a, fullRoute("shop"))
	_, err := s.EditRoute(ctx, a, "shop", tenants.Match{}, func(r *route.Route) error { r.Fail, r.Cost = route.FailClosed, 5; return nil })
	require.NoError(t, err)
	require.NoError(t, s.DeleteRoute(ctx, a, "shop", tenants.Match{}))
	rows, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "route"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 3)
	require.Equal(t, []string{"delete", "update", "create"}, []string{rows[0].Action, rows[1].Action, rows[2].Action})
	require.JSONEq(t, `{"fail":"open","cost":2}`, string(rows[1].Before))
	require.JSONEq(t, `{"fail":"closed","cost":5}`, string(rows[1].After))
	var made map[string]any
	require.NoError(t, json.Unmarshal(rows[2].After, &made))
	require.Equal(t, []any{"jwt:sub", "cookie:sid", "ip"}, made["subject"])
	require.Equal(t, map[string]any{"ip": "ip", "a.b": "header:X-Region"}, made["attributes"])
	require.NotContains(t, made, "tenant_id")
}

// A document creates, changes and prunes routes, and is read as it was written.
func TestRoutesInADocument(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	s := d.Store
	shop, plain := fullRoute("shop"), byHeader("plain")
	require.Equal(t, []string{"Create route plain.", "Create route shop."},
		mustApply(t, s, a, tenants.Document{Routes: []route.Route{plain, shop}}, tenants.Apply{}))
	got, version := documentOf(t, s, a)
	require.Equal(t, []route.Route{plain, shop}, sortedEmpties(got.Routes))
	require.Empty(t, mustApply(t, s, a, got, tenants.Apply{Prune: true}))
	require.Empty(t, mustApply(t, s, a, tenants.Document{}, tenants.Apply{Prune: true}), "a missing section changes nothing")

	shop.Fail = route.FailClosed
	change := tenants.Document{Routes: []route.Route{shop}}
	want := []string{`Change route shop: fail from "open" to "closed".`, "Delete route plain."}
	require.Equal(t, want, mustApply(t, s, a, change, tenants.Apply{Prune: true, DryRun: true}))
	require.Equal(t, want, mustApply(t, s, a, change, tenants.Apply{Prune: true, Match: at(version)}))
	require.Equal(t, []route.Route{shop}, policyOf(t, s, a.TenantID()).Routes)

	wrong := byHeader("shop")
	wrong.Subject, wrong.Resources = nil, []route.Template{{Match: "orders"}}
	_, err := s.ApplyDocument(t.Context(), a, tenants.Document{Routes: []route.Route{byHeader("x"), byHeader("x"), wrong}}, tenants.Apply{})
	requireInvalid(t, err, "routes.1.slug", "routes.2.subject", "routes.2.resources.0.match")
}

// sortedEmpties returns routes in the form of this test: without empty lists.
func sortedEmpties(routes []route.Route) []route.Route {
	for i := range routes {
		if len(routes[i].Resources) == 0 {
			routes[i].Resources = nil
		}
		if len(routes[i].Attributes) == 0 {
			routes[i].Attributes = nil
		}
	}
	return routes
}

// A tenant cannot fill the memory of every instance with routes.
func TestMostRoutes(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	var all []route.Route
	for i := range route.MaxRoutes {
		all = append(all, byHeader(fmt.Sprintf("r-%d", i)))
	}
	mustApply(t, d.Store, a, tenants.Document{Routes: all}, tenants.Apply{})
	_, err := d.Store.CreateRoute(t.Context(), a, byHeader("more"))
	requireInvalid(t, err, "slug")
	_, err = d.Store.ApplyDocument(t.Context(), a, tenants.Document{Routes: []route.Route{byHeader("more")}}, tenants.Apply{})
	requireInvalid(t, err, "routes")
	_, err = d.Store.ApplyDocument(t.Context(), a, tenants.Document{Routes: append(all, byHeader("more"))}, tenants.Apply{})
	requireInvalid(t, err, "routes")
	mustApply(t, d.Store, a, tenants.Document{Routes: append(all[1:], byHeader("more"))}, tenants.Apply{Prune: true})
}

// The database enforces the ranges of a route.
func TestRouteConstraints(t *testing.T) {
	t.Parallel()
	d, a, _ := two(t)
	mustRoute(t, d.Store, a, fullRoute("shop"))
	for _, statement := range []string{
		"UPDATE routes SET slug = 'A'", "UPDATE routes SET subject = '{}'", "UPDATE routes SET subject = '{NULL}'", "UPDATE routes SET hash = ''",
		"UPDATE routes SET no_subject = 'maybe'", "UPDATE routes SET resources = '{}'", "UPDATE routes SET attributes = '[]'", "UPDATE routes SET cost = -1",
		"UPDATE routes SET default_resource = ''", "UPDATE routes SET default_resource = 'a*'", "UPDATE routes SET denied_status = 200", "UPDATE routes SET fail = 'ajar'",
		"UPDATE routes SET subject = array_fill('ip'::text, ARRAY[9])",
	} {
		d.Conn(func(ctx context.Context, conn *pgx.Conn) {
			_, err := conn.Exec(ctx, statement)
			var pgErr *pgconn.PgError
			require.ErrorAs(t, err, &pgErr, statement)
			require.Equal(t, "23", pgErr.Code[:2], "%s: %v", statement, err)
		})
	}
}
