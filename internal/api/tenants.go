package api

import (
	"context"
	"encoding/json"
	"time"

	"weir/internal/tenants"
)

// Tenant is a tenant, as the API shows it.
type Tenant struct {
	ID         string    `json:"id" format:"uuid"`
	Slug       string    `json:"slug" doc:"Cannot be changed"`
	Name       string    `json:"name"`
	State      string    `json:"state" enum:"active,suspended" doc:"The keys of a suspended tenant are refused"`
	Partitions int       `json:"partitions" minimum:"1" maximum:"64" doc:"Hash tags over which its counters are spread in a Redis Cluster"`
	CreatedAt  time.Time `json:"created_at"`
	UpdatedAt  time.Time `json:"updated_at"`
	Version    int64     `json:"version"`
}

// TenantCreated is a new tenant with its first key, which has all scopes.
type TenantCreated struct {
	Tenant
	Key APIKey `json:"key"`
}

// TenantCreate is the body of POST /v1/tenants.
type TenantCreate struct {
	Slug       string           `json:"slug" doc:"1 to 63 of a-z, 0-9 and -; cannot be changed later"`
	Name       Optional[string] `json:"name,omitempty" doc:"Up to 200 characters; default: the slug"`
	Partitions Optional[int]    `json:"partitions,omitempty" minimum:"1" maximum:"64" doc:"1 to 64; default 1"`
}

// TenantPatch is the merge patch of PATCH /v1/tenant.
type TenantPatch struct {
	Name Optional[string] `json:"name,omitempty" doc:"Up to 200 characters; null: the slug"`
}

// TenantOperatorPatch is the merge patch of PATCH /v1/tenants/{tenant}.
type TenantOperatorPatch struct {
	Slug       Optional[string] `json:"slug,omitempty" doc:"Cannot be changed"`
	Name       Optional[string] `json:"name,omitempty" doc:"Up to 200 characters; null: the slug"`
	State      Optional[string] `json:"state,omitempty" enum:"active,suspended" doc:"null: active"`
	Partitions Optional[int]    `json:"partitions,omitempty" minimum:"1" maximum:"64" doc:"1 to 64; null: 1. A change ends when no unit counts any more that was counted before it; until then, a further one gets 409"`
}

// TenantPath names a tenant.
type TenantPath struct {
	Tenant string `path:"tenant" doc:"Slug or id of the tenant"`
}

func tenantAnswer(t tenants.Tenant) Tenant {
	return Tenant{
		ID: t.ID.String(), Slug: t.Slug, Name: t.Name, State: t.State, Partitions: t.Partitions,
		CreatedAt: t.CreatedAt, UpdatedAt: t.UpdatedAt, Version: t.Version,
	}
}

func (a *admin) getTenant(ctx context.Context, _ *struct{}) (*object[TenantDetail], error) {
	t, err := a.store.Tenant(ctx, actorFrom(ctx))
	if err != nil {
		return nil, err
	}
	answer, err := a.tenantDetail(ctx, t)
	if err != nil {
		return nil, err
	}
	return found(answer, t.Version), nil
}

func (a *admin) patchTenant(ctx context.Context, in *struct{ Body TenantPatch }) (*object[Tenant], error) {
	t, err := a.store.EditTenant(ctx, actorFrom(ctx), conditionsFrom(ctx).match, func(t *tenants.Tenant) error {
		t.Name = in.Body.Name.patch(t.Name, t.Slug)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return found(tenantAnswer(t), t.Version), nil
}

func (a *admin) listTenants(ctx context.Context, in *struct{ PageParams }) (*page[Tenant], error) {
	return listPage(ctx, a, "tenants", in.PageParams, tenantAnswer, func(p tenants.Page) ([]tenants.Tenant, string, error) {
		return a.store.ListTenants(ctx, actorFrom(ctx), tenants.TenantFilter{}, p)
	})
}

func (a *admin) createTenant(ctx context.Context, in *struct{ Body TenantCreate }) (*object[TenantCreated], error) {
	t, k, secret, err := a.store.CreateTenant(ctx, actorFrom(ctx), tenants.NewTenant{
		Slug: in.Body.Slug, Name: in.Body.Name.or(in.Body.Slug), Partitions: in.Body.Partitions.or(1),
	})
	if err != nil {
		return nil, err
	}
	followTenant(ctx, t.ID)
	body := TenantCreated{Tenant: tenantAnswer(t), Key: newKeyAnswer(k, secret)}
	return stored(body, t.Version, true, "/v1/tenants/"+t.Slug), nil
}

// redactTenant removes the first key's secret from the answer that is stored for replays.
func redactTenant(answer []byte) ([]byte, error) {
	var t TenantCreated
	if err := json.Unmarshal(answer, &t); err != nil {
		return nil, err
	}
	t.Key.Secret, t.Key.SecretOmitted = "", true
	return json.Marshal(t)
}

func (a *admin) getTenantByRef(ctx context.Context, in *TenantPath) (*object[TenantDetail], error) {
	t, err := a.store.TenantBySlugOrID(ctx, actorFrom(ctx), in.Tenant)
	if err != nil {
		return nil, err
	}
	answer, err := a.tenantDetail(ctx, t)
	if err != nil {
		return nil, err
	}
	return found(answer, t.Version), nil
}

func (a *admin) patchTenantByRef(ctx context.Context, in *struct {
	TenantPath
	Body TenantOperatorPatch
}) (*object[Tenant], error) {
	b := &in.Body
	t, err := a.store.EditTenantByRef(ctx, actorFrom(ctx), in.Tenant, conditionsFrom(ctx).match, func(t *tenants.Tenant) error {
		t.Name = b.Name.patch(t.Name, t.Slug)
		t.State = b.State.patch(t.State, tenants.TenantActive)
		t.Partitions = b.Partitions.patch(t.Partitions, 1)
		return invalidIfAny(mismatch(b.Slug, "/slug", t.Slug))
	})
	if err != nil {
		return nil, err
	}
	followTenant(ctx, t.ID)
	return found(tenantAnswer(t), t.Version), nil
}

func (a *admin) deleteTenant(ctx context.Context, in *TenantPath) error {
	t, unknown := a.store.TenantBySlugOrID(ctx, actorFrom(ctx), in.Tenant)
	if err := a.store.DeleteTenant(ctx, actorFrom(ctx), in.Tenant, conditionsFrom(ctx).match); err != nil {
		return err
	}
	if unknown == nil {
		followTenant(ctx, t.ID)
	}
	return nil
}
