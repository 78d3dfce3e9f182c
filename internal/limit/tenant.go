package limit

import "github.com/google/uuid"

// TenantID identifies a tenant. It comes from a verified key or session, never from a request's
// body.
type TenantID = uuid.UUID
