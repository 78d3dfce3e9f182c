package check

import "weir/internal/limit"

// PrefixOf returns the beginning of the keys of a tenant's counters that count by a subject.
func (k Keys) PrefixOf(tenant limit.TenantID, partitions int, subject string) string {
	return k.places(tenant, partitions).ofSubject(subject)
}
