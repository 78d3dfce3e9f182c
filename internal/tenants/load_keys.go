package tenants

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/tenants/db"
)

// maxTenantsRead is the number of tenants whose keys an instance reads when it starts: about 700 B
// each, with two keys.
const maxTenantsRead = 100_000

// keysSQL reads the keys of tenants, by tenant; a tenant without keys has a row without a hash. The
// tenants are all, or those in $3 and the $4 whose keys were used last. Of keys that have ended at
// $1, it reads the $2 of each tenant that changed last, as StoredKeys does.
const (
	keysSQL = `
SELECT t.id, coalesce(k.id, t.id), coalesce(k.name, ''), coalesce(k.kind, ''), coalesce(k.scopes, '{}'), coalesce(k.hash, ''),
    k.expires_at, k.revoked_at, k.rotated_to, coalesce(k.addresses, '{}'), coalesce(k.resources, '{}'), t.state, t.slug, t.keys_version
FROM tenants t LEFT JOIN api_keys k ON k.tenant_id = t.id AND (k.tenant_id, k.id) NOT IN (
    SELECT tenant_id, id FROM (
        SELECT tenant_id, id, row_number() OVER (PARTITION BY tenant_id ORDER BY version DESC, id DESC) AS place
        FROM api_keys WHERE revoked_at IS NOT NULL OR expires_at <= $1
    ) ended WHERE place > $2)`
	lastUsedSQL = `
WHERE t.id = ANY($3) OR t.id IN (SELECT tenant_id FROM api_keys GROUP BY tenant_id ORDER BY max(last_used_at) DESC NULLS LAST LIMIT $4)`
	byTenantSQL = `
ORDER BY t.id`
)

// Load reads the keys of all tenants, so that an outage of Postgres affects none of them. If there
// are more than maxTenantsRead, it reads the keys of the tenants that are known already and of
// those whose keys were used last. Of all keys it then knows 64 bits of their hashes, so that
// looking one up at its first use is not taken for a guess. Errors: ErrUnavailable.
func (a *Authenticator) Load(ctx context.Context) error {
	history := a.store.history.Load()
	known := a.knownTenants()
	var upTo reading
	var unread *keyFilter
	err := a.store.asSystemWithin(ctx, loadTimeout, pgx.ReadOnly, func(ctx context.Context, tx pgx.Tx, q *db.Queries) error {
		if err := longStatements(ctx, tx); err != nil {
			return err
		}
		now, err := q.ConfigVersion(ctx) // before the keys: whatever changes later is read again
		if err != nil {
			return err
		}
		upTo = reading{history, now.Version}
		var count int
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM tenants").Scan(&count); err != nil {
			return err
		}
		statement, args := keysSQL+byTenantSQL, []any{a.store.instant(), maxEndedRead}
		if count > a.most {
			if unread, err = readKeyFilter(ctx, tx); err != nil {
				return err
			}
			statement, args = keysSQL+lastUsedSQL+byTenantSQL, append(args, known, a.most)
		}
		found, err := tx.Query(ctx, statement, args...)
		if err != nil {
			return err
		}
		return a.takeAll(found, history)
	})
	a.down.Store(err != nil)
	if err != nil {
		return fmt.Errorf("load the API keys: %w", err)
	}
	a.mu.Lock()
	a.upTo = upTo
	a.unread.Store(unread)
	a.mu.Unlock()
	a.removeBefore(known, history)
	return nil
}

func (a *Authenticator) knownTenants() []uuid.UUID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Keys(a.tenants))
}

// removeBefore removes the keys of those known tenants that are not in the present history: what
// was known of them is from an earlier one.
func (a *Authenticator) removeBefore(known []uuid.UUID, history int64) {
	a.mu.Lock()
	known = slices.DeleteFunc(known, func(id uuid.UUID) bool { return a.tenants[id].at.history >= history })
	a.mu.Unlock()
	for _, id := range known {
		a.removeKnown(id)
	}
}

// takeAll replaces the known keys of each tenant when its last row has been read.
func (a *Authenticator) takeAll(found pgx.Rows, history int64) error {
	var r db.LookUpTenantKeysRow
	var of []db.LookUpTenantKeysRow // the tenant that is being read
	var tenant uuid.UUID
	var version int64
	names := map[string]string{} // most keys have one of a few names, which they share
	_, err := pgx.ForEachRow(found, []any{&r.TenantID, &r.ID, &r.Name, &r.Kind, &r.Scopes, &r.Hash, &r.ExpiresAt, &r.RevokedAt, &r.RotatedTo,
		&r.Addresses, &r.Resources, &r.TenantState, &r.TenantSlug, &r.KeysVersion}, func() error {
		if r.TenantID != tenant {
			if tenant != uuid.Nil {
				a.replace(tenant, of, reading{history, version})
			}
			of, tenant, version = of[:0], r.TenantID, r.KeysVersion
		}
		if len(r.Hash) == 0 {
			return nil
		}
		row := r
		if name, common := names[row.Name]; common {
			row.Name = name
		} else if len(names) < 1000 {
			names[row.Name] = row.Name
		}
		of = append(of, row)
		return nil
	})
	if err == nil && tenant != uuid.Nil {
		a.replace(tenant, of, reading{history, version})
	}
	return err
}

// keyFilter has the first 64 bits of the hashes of all keys, in order. A key that was created later
// is not in it, and one that was deleted later is.
type keyFilter struct{ hashes []uint64 }

// readKeyFilter reads the hashes of all keys.
func readKeyFilter(ctx context.Context, tx pgx.Tx) (*keyFilter, error) {
	found, err := tx.Query(ctx, "SELECT substr(hash, 1, 8) FROM api_keys")
	if err != nil {
		return nil, err
	}
	defer found.Close()
	f := &keyFilter{}
	for found.Next() {
		f.hashes = append(f.hashes, binary.BigEndian.Uint64(found.RawValues()[0]))
	}
	slices.Sort(f.hashes)
	return f, found.Err()
}

// has reports whether a key may exist. A nil filter has none.
func (f *keyFilter) has(hash [32]byte) bool {
	if f == nil {
		return false
	}
	_, found := slices.BinarySearch(f.hashes, binary.BigEndian.Uint64(hash[:8]))
	return found
}
