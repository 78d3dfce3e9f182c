package engine

import "weir/internal/limit"

// CounterWork estimates the work of a counter in a call for the store, in the units of
// limit.Numbers.Work. Everything that weighs checks uses it: the quota of work of a tenant, the
// turns of tenants in a pipeline, and the bound of a script call.
func CounterWork(n *limit.Numbers, credits *Credits) int64 {
	work := n.Work()
	if credits != nil {
		work += limit.CreditsWork(len(credits.Grants))
	}
	return work
}
