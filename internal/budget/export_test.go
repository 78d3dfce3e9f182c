package budget

import "context"

// Look is a look of Run.
func (b *Budget) Look(ctx context.Context) { b.look(ctx) }

// Tenants returns how many tenants are known.
func (b *Budget) Tenants() int { return b.tenants.Size() }
