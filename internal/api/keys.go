package api

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"

	"weir/internal/limit"
	"weir/internal/tenants"
)

// APIKey is a key of a tenant, as the API shows it.
type APIKey struct {
	ID            string     `json:"id" format:"uuid"`
	Name          string     `json:"name"`
	Kind          string     `json:"kind" enum:"key,op" doc:"op: an operator key"`
	Scopes        []string   `json:"scopes" enum:"check,read,write,manage"`
	Secret        string     `json:"secret,omitempty" doc:"The key itself; only in the answer that creates it"`
	SecretOmitted bool       `json:"secret_omitted,omitempty" doc:"This answer is a replay. Only the first answer has the secret"`
	Last4         string     `json:"last4" doc:"The last four characters of the secret"`
	ExpiresAt     *time.Time `json:"expires_at" doc:"null: never"`
	CreatedAt     time.Time  `json:"created_at"`
	LastUsedAt    *time.Time `json:"last_used_at" doc:"Accurate to about a minute"`
	RevokedAt     *time.Time `json:"revoked_at"`
	RotatedTo     *string    `json:"rotated_to" format:"uuid" doc:"The key that replaces this one"`
	Addresses     []string   `json:"addresses" doc:"Networks from which the key works; empty: all"`
	Resources     []string   `json:"resources" doc:"What the key may check; empty: everything"`
	Version       int64      `json:"version"`
}

// KeyCreate is the body of POST /v1/keys.
type KeyCreate struct {
	Name      Optional[string]    `json:"name,omitempty" doc:"Up to 200 characters"`
	Scopes    []string            `json:"scopes" enum:"check,read,write,manage" minItems:"1" maxItems:"4" doc:"Each once; at most the scopes of the calling key"`
	ExpiresAt Optional[time.Time] `json:"expires_at,omitempty" doc:"RFC 3339, in the future, not after the calling key; default: never"`
	Addresses Optional[[]string]  `json:"addresses,omitempty" doc:"Up to 20 networks or addresses from which the key works, such as 192.0.2.0/24; at most those of the calling key; default: all"`
	Resources Optional[[]string]  `json:"resources,omitempty" doc:"Up to 20 resources that the key may check, exact or as a prefix and *, such as chat.*; only with the scope check and no other; default: all"`
	Kind      Optional[string]    `json:"kind,omitempty" enum:"key,op" doc:"op only with an operator key; default key"`
}

// KeyPatch is the merge patch of PATCH /v1/keys/{id}.
type KeyPatch struct {
	Name      Optional[string]    `json:"name,omitempty" doc:"Up to 200 characters"`
	Scopes    Optional[[]string]  `json:"scopes,omitempty" enum:"check,read,write,manage" minItems:"1" maxItems:"4" doc:"Each once; at most the scopes of the calling key"`
	ExpiresAt Optional[time.Time] `json:"expires_at,omitempty" doc:"RFC 3339, in the future, not after the calling key; null: never"`
	Addresses Optional[[]string]  `json:"addresses,omitempty" doc:"Up to 20 networks or addresses from which the key works; at most those of the calling key; null: all"`
	Resources Optional[[]string]  `json:"resources,omitempty" doc:"Up to 20 resources that the key may check, exact or as a prefix and *; only with the scope check and no other; null: all"`
}

// KeyRotate is the body of POST /v1/keys/{id}/rotate.
type KeyRotate struct {
	Overlap Optional[string] `json:"overlap,omitempty" doc:"How long the old key continues to work: 0s to 30d; default 24h"`
}

// KeyPath names a key.
type KeyPath struct {
	ID string `path:"id" doc:"Id of the key"`
}

// defaultOverlap leaves a day to replace the old key where it is used.
const defaultOverlap = 24 * time.Hour

func keyLocation(id uuid.UUID) string { return "/v1/keys/" + id.String() }

func keyAnswer(k tenants.APIKey) APIKey {
	out := APIKey{
		ID: k.ID.String(), Name: k.Name, Kind: string(k.Kind), Scopes: make([]string, len(k.Scopes)), Last4: k.Last4,
		ExpiresAt: k.ExpiresAt, CreatedAt: k.CreatedAt, LastUsedAt: k.LastUsedAt, RevokedAt: k.RevokedAt, Version: k.Version,
		Addresses: append([]string{}, k.Bounds.Addresses...), Resources: append([]string{}, k.Bounds.Resources...),
	}
	for i, scope := range k.Scopes {
		out.Scopes[i] = string(scope)
	}
	if k.RotatedTo != nil {
		out.RotatedTo = ptr(k.RotatedTo.String())
	}
	return out
}

// newKeyAnswer returns the only answer with the secret.
func newKeyAnswer(k tenants.APIKey, secret tenants.Key) APIKey {
	out := keyAnswer(k)
	out.Secret = secret.Secret()
	return out
}

// redactKey removes the secret from the answer that is stored for replays, and marks it as omitted.
func redactKey(answer []byte) ([]byte, error) {
	var k APIKey
	if err := json.Unmarshal(answer, &k); err != nil {
		return nil, err
	}
	k.Secret, k.SecretOmitted = "", true
	return json.Marshal(k)
}

func scopesOf(names []string) []tenants.Scope {
	scopes := make([]tenants.Scope, len(names))
	for i, name := range names {
		scopes[i] = tenants.Scope(name)
	}
	return scopes
}

// objectID parses the id in a path. An invalid id is not found.
func objectID(text string) (uuid.UUID, error) {
	id, err := uuid.Parse(text)
	if err != nil || id.String() != text { // uuid.Parse accepts other notations, too
		return uuid.UUID{}, tenants.ErrNotFound
	}
	return id, nil
}

func (a *admin) listKeys(ctx context.Context, in *struct{ PageParams }) (*page[APIKey], error) {
	return listPage(ctx, a, "keys", in.PageParams, keyAnswer, func(p tenants.Page) ([]tenants.APIKey, string, error) {
		return a.store.Keys(ctx, actorFrom(ctx), p)
	})
}

func (a *admin) createKey(ctx context.Context, in *struct{ Body KeyCreate }) (*object[APIKey], error) {
	b := &in.Body
	var errs []ProblemField
	if noRepeat(&errs, b.Scopes); len(errs) > 0 {
		return nil, invalid(errs...)
	}
	k, secret, err := a.store.CreateKey(ctx, actorFrom(ctx), tenants.NewAPIKey{
		Name: b.Name.or(""), Kind: tenants.KeyKind(b.Kind.or(string(tenants.TenantKey))), Scopes: scopesOf(b.Scopes),
		ExpiresAt: optionalTime(b.ExpiresAt), Bounds: tenants.KeyBounds{Addresses: b.Addresses.or(nil), Resources: b.Resources.or(nil)},
	})
	if err != nil {
		return nil, err
	}
	return stored(newKeyAnswer(k, secret), k.Version, true, keyLocation(k.ID)), nil
}

// noRepeat refuses a scope that is named twice. The validator could do so, too, but it panics if an
// item of the list is itself a list.
func noRepeat(errs *[]ProblemField, scopes []string) {
	sorted := slices.Sorted(slices.Values(scopes))
	if len(slices.Compact(sorted)) < len(scopes) {
		*errs = append(*errs, wrongField("/scopes", limit.Wrong("Name each scope once.", "must not contain a scope twice")))
	}
}

func (a *admin) getKey(ctx context.Context, in *KeyPath) (*object[APIKey], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	k, err := a.store.KeyByID(ctx, actorFrom(ctx), id)
	if err != nil {
		return nil, err
	}
	return found(keyAnswer(k), k.Version), nil
}

func (a *admin) patchKey(ctx context.Context, in *struct {
	KeyPath
	Body KeyPatch
}) (*object[APIKey], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	b := &in.Body
	k, err := a.store.EditKey(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match, func(k *tenants.APIKey) error {
		var errs []ProblemField
		b.Scopes.refuseNull(&errs, "/scopes")
		noRepeat(&errs, b.Scopes.Value)
		k.Name = b.Name.patch(k.Name, "")
		if b.Scopes.Set {
			k.Scopes = scopesOf(b.Scopes.Value)
		}
		if b.ExpiresAt.Set {
			k.ExpiresAt = optionalTime(b.ExpiresAt)
		}
		k.Bounds.Addresses = b.Addresses.patch(k.Bounds.Addresses, nil)
		k.Bounds.Resources = b.Resources.patch(k.Bounds.Resources, nil)
		return invalidIfAny(errs)
	})
	if err != nil {
		return nil, err
	}
	return found(keyAnswer(k), k.Version), nil
}

func (a *admin) revokeKey(ctx context.Context, in *KeyPath) error {
	id, err := objectID(in.ID)
	if err != nil {
		return err
	}
	return a.store.RevokeKey(ctx, actorFrom(ctx), id, conditionsFrom(ctx).match)
}

func (a *admin) rotateKey(ctx context.Context, in *struct {
	KeyPath
	Body *KeyRotate
}) (*object[APIKey], error) {
	id, err := objectID(in.ID)
	if err != nil {
		return nil, err
	}
	overlap := defaultOverlap
	if in.Body != nil {
		if overlap, err = parseOverlap(in.Body.Overlap); err != nil {
			return nil, err
		}
	}
	k, secret, err := a.store.RotateKey(ctx, actorFrom(ctx), id, overlap)
	if err != nil {
		return nil, err
	}
	return stored(newKeyAnswer(k, secret), k.Version, true, keyLocation(k.ID)), nil
}

const maxOverlap = 30 * 24 * time.Hour

func parseOverlap(o Optional[string]) (time.Duration, error) {
	switch {
	case !o.Set || o.Null:
		return defaultOverlap, nil
	case o.Value == "0s":
		return 0, nil
	}
	d, err := limit.ParseDuration(o.Value)
	if err != nil || d.MS > maxOverlap.Milliseconds() {
		return 0, invalid(wrongField("/overlap", limit.MustBe("a duration from 0s to 30d")))
	}
	return time.Duration(d.MS) * time.Millisecond, nil
}
