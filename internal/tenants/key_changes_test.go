package tenants_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// What changed for keys with very long bounds is told in messages that receivers accept, and that a
// tenant was suspended, in short ones.
func TestAuthenticatorTellsOfLongBounds(t *testing.T) {
	t.Parallel()
	d := tenantstest.New(t)
	a, key := d.Tenant("tenant-a")
	ctx := t.Context()
	bounds := tenants.KeyBounds{Resources: make([]string, 20)}
	for i := range bounds.Resources {
		bounds.Resources[i] = fmt.Sprintf("%02d", i) + strings.Repeat("<", 250)
	}
	var ids []uuid.UUID
	for range 12 {
		k, _, err := d.Store.CreateKey(ctx, a, tenants.NewAPIKey{Scopes: []tenants.Scope{tenants.ScopeCheck}, Bounds: bounds})
		require.NoError(t, err)
		ids = append(ids, k.ID)
	}
	reader, other := tenants.NewAuthenticator(d.Store), tenants.NewAuthenticator(d.Store)
	var messages [][]byte
	reader.Tell(func(m []byte) { messages = append(messages, m) })
	require.NoError(t, reader.Load(ctx))
	require.NoError(t, other.Load(ctx))
	end := time.Now().Add(time.Hour)
	for _, id := range ids {
		_, err := d.Store.EditKey(ctx, a, id, tenants.Match{}, func(k *tenants.APIKey) error { k.ExpiresAt = &end; return nil })
		require.NoError(t, err)
	}
	reader.Changed(ctx, a.TenantID())
	told := 0
	for _, m := range messages {
		var c tenants.KeyChanges
		require.NoError(t, json.Unmarshal(m, &c))
		told += len(c.Keys)
		require.LessOrEqual(t, len(m), 128<<10)
	}
	require.Equal(t, len(ids), told)
	require.Greater(t, len(messages), 3)

	messages = nil
	_, err := d.Store.EditTenantByRef(ctx, operator, "tenant-a", tenants.Match{}, func(in *tenants.Tenant) error {
		in.State = tenants.TenantSuspended
		return nil
	})
	require.NoError(t, err)
	reader.Changed(ctx, a.TenantID())
	require.Len(t, messages, 1)
	require.Less(t, len(messages[0]), 4<<10)
	require.NoError(t, other.Learn(messages[0]))
	_, err = other.Authenticate(ctx, key.Secret())
	require.ErrorIs(t, err, tenants.ErrTenantSuspended)
}
