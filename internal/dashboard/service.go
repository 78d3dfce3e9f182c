package dashboard

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"weir/internal/tenants"
	"weir/internal/usage"
)

// serviceView is the health of the whole service at a glance, for the operator.
type serviceView struct {
	Instances, Silent int // that answered, and that are alive but did not answer
	Degraded          int // instances that cannot reach Redis
	Outdated          int // instances whose configuration is out of date
	Checks            int64
	Slowest           string // highest p99 of an instance in the last minute; "": no checks
	Busiest           []tenantRow
}

const (
	mostServed = 500 // tenants that are compared
	mostBusy   = 5
)

// busiestTenants returns the tenants with most checks in the last 24 hours.
func (d *dashboard) busiestTenants(ctx context.Context, v *visit) (busy []tenantRow, err error) {
	list, _, err := d.Store.ListTenants(ctx, v.actor(), tenants.TenantFilter{}, tenants.Page{Limit: mostServed})
	if err != nil {
		return nil, err
	}
	ids := make([]uuid.UUID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	served, err := d.Store.Served(ctx, v.actor(), ids, stretchUntil(v.now, usage.Hour, servedHours).From)
	if err != nil {
		return nil, err
	}
	for i := range list {
		if row := tenantRowOf(&list[i], served[list[i].ID], nil); row.Allowed+row.Denied > 0 {
			busy = append(busy, row)
		}
	}
	slices.SortStableFunc(busy, func(a, b tenantRow) int { return cmp.Compare(b.Allowed+b.Denied, a.Allowed+a.Denied) })
	return busy[:min(len(busy), mostBusy)], nil
}

// Healthy reports whether there is nothing to do.
func (s *serviceView) Healthy() bool { return s.Silent+s.Degraded+s.Outdated == 0 }

// Lead returns the summary sentence.
func (s *serviceView) Lead() string {
	switch {
	case s.Degraded > 0:
		return plural(int64(s.Degraded), "instance cannot", "instances cannot") + " reach Redis"
	case s.Outdated > 0:
		return plural(int64(s.Outdated), "instance has", "instances have") + " an outdated configuration"
	case s.Silent > 0:
		return plural(int64(s.Silent), "instance", "instances") + " did not answer"
	}
	return "The service is healthy"
}

// readService reads the state of all instances.
func (d *dashboard) readService(ctx context.Context, now time.Time) *serviceView {
	ctx, cancel := context.WithTimeout(ctx, recentWithin)
	defer cancel()
	list, known := d.Recent.Instances(ctx)
	out := serviceView{Instances: len(list), Silent: max(0, known-len(list))}
	var slowest time.Duration
	for i := range list {
		row := instanceRowOf(&list[i], now)
		if row.CountersTone == "bad" {
			out.Degraded++
		}
		if row.ConfigTone == "bad" {
			out.Outdated++
		}
		out.Checks += int64(list[i].Latency.Checks)
		slowest = max(slowest, list[i].Latency.P99)
	}
	if out.Checks > 0 {
		out.Slowest = latencyText(slowest)
	}
	return &out
}
