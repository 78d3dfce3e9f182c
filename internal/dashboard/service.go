package dashboard

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
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
	Postgres          string // how long it took to answer this instance; "": it did not
}

// homeView is the overview of the operator. Other tenants have an overview of their own checks; the
// operator's tenant has hardly any.
type homeView struct {
	Period  period
	Service *serviceView
	Chart   chart // checks of all tenants
	Near    []nearQuotaRow
	Busiest []tenantRow
	More    bool // there are more tenants than were compared
}

// nearQuotaRow is a quota of a tenant of which at least nearQuota is used.
type nearQuotaRow struct {
	Tenant, Path string
	quotaLine
}

const (
	mostServed = 500 // tenants that are compared
	mostBusy   = 5
	mostNearly = 10 // quotas in the list
	// inspecting is how many tenants are compared with their quotas at once: their calls to Redis
	// share pipelines.
	inspecting = 32
	// slowHome is the number of ticks between two comparisons of all tenants with their quotas.
	slowHome = 30
)

// Stream returns the address of the updates.
func (v *homeView) Stream() string { return "/live/overview?period=" + v.Period.Value }

// operatorHome is the overview of the operator: the health of the service, and its tenants.
func (d *dashboard) operatorHome(w http.ResponseWriter, r *http.Request, v *visit, p period) (err error) {
	view := homeView{Period: p, Service: d.readService(r.Context(), v.now)}
	if err := d.readServed(r.Context(), v.actor(), &view, v.now); err != nil {
		return err
	}
	if view.Near, view.More, err = d.nearQuotas(r.Context(), v.actor(), v.now); err != nil {
		return err
	}
	v.frame.Title = "Overview"
	return d.render(w, r, http.StatusOK, operatorHomePage(v.frame, &view))
}

// liveOperatorHome updates the overview of the operator.
func (d *dashboard) liveOperatorHome(w http.ResponseWriter, r *http.Request, v *visit, p period) error {
	actor := tenants.AsOperator("live") // outlives this visit, and only reads
	return d.live(w, r, v, "operator "+p.Value, func(ctx context.Context, tick int) ([]part, error) {
		if tick%2 == 1 {
			return nil, nil
		}
		now, view := d.Now(), homeView{Period: p}
		// The health is shown also while Postgres does not answer.
		parts := []part{{"service", serviceHealth(d.readService(ctx, now))}}
		if tick%overviewSlow != 0 {
			return parts, nil
		}
		if err := d.readServed(ctx, actor, &view, now); err != nil {
			return parts, nil //nolint:nilerr // the tile of Postgres says it
		}
		parts = append(parts, part{"sums", chartSums(&view.Chart)}, part{"plot", chartPlot(&view.Chart)}, part{"series", chartSeries(&view.Chart)}, part{"busiest", busiestTable(view.Busiest)})
		if tick%slowHome != 0 {
			return parts, nil
		}
		near, more, err := d.nearQuotas(ctx, actor, now)
		if err != nil {
			return parts, nil //nolint:nilerr // as above
		}
		return append(parts, part{"near", nearQuotaTable(near, more)}), nil
	})
}

// readServed reads the checks of all tenants over time, and the busiest tenants.
func (d *dashboard) readServed(ctx context.Context, actor tenants.Actor, view *homeView, now time.Time) error {
	s := stretchUntil(now, view.Period.Grain, view.Period.Grains)
	from := s.From
	if s.Before {
		from = s.earlier()
	}
	items, err := d.Store.ServiceUsage(ctx, actor, s.Grain, from, s.To)
	if err != nil {
		return err
	}
	view.Chart = newChart("Checks of all tenants in the last "+strings.TrimPrefix(view.Period.Name, "1 "), s, items)
	view.Busiest, err = d.busiestTenants(ctx, actor, now)
	return err
}

// busiestTenants returns the tenants with most checks in the last 24 hours.
func (d *dashboard) busiestTenants(ctx context.Context, actor tenants.Actor, now time.Time) (busy []tenantRow, err error) {
	list, _, err := d.Store.ListTenants(ctx, actor, tenants.TenantFilter{}, tenants.Page{Limit: mostServed})
	if err != nil {
		return nil, err
	}
	ids := make([]uuid.UUID, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	served, err := d.Store.Served(ctx, actor, ids, stretchUntil(now, usage.Hour, servedHours).From)
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

// nearQuotas returns the tenants that have used most of a quota, by the counters of their quotas.
func (d *dashboard) nearQuotas(ctx context.Context, actor tenants.Actor, now time.Time) (near []nearQuotaRow, more bool, err error) {
	list, next, err := d.Store.ListTenants(ctx, actor, tenants.TenantFilter{State: tenants.TenantActive}, tenants.Page{Limit: mostServed})
	if err != nil {
		return nil, false, err
	}
	lines := make([][]quotaLine, len(list))
	places := make(chan struct{}, inspecting)
	var all sync.WaitGroup
	for i := range list {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			lines[i] = d.quotasOf(ctx, list[i].Slug, now)
		})
	}
	all.Wait()
	for i := range list {
		for _, line := range lines[i] {
			if line.Permille >= nearQuota {
				near = append(near, nearQuotaRow{nameOr(list[i].Name, list[i].Slug), tenantURL(list[i].Slug), line})
			}
		}
	}
	slices.SortStableFunc(near, func(a, b nearQuotaRow) int { return cmp.Compare(b.Permille, a.Permille) })
	return near[:min(len(near), mostNearly)], next != "" || len(near) > mostNearly, nil
}

// Healthy reports whether there is nothing to do.
func (s *serviceView) Healthy() bool {
	return s.Silent+s.Degraded+s.Outdated == 0 && s.Postgres != ""
}

// Lead returns the summary sentence.
func (s *serviceView) Lead() string {
	switch {
	case s.Degraded > 0:
		return plural(int64(s.Degraded), "instance cannot", "instances cannot") + " reach Redis"
	case s.Postgres == "":
		return "This instance cannot reach Postgres"
	case s.Outdated > 0:
		return plural(int64(s.Outdated), "instance has", "instances have") + " an outdated configuration"
	case s.Silent > 0:
		return plural(int64(s.Silent), "instance", "instances") + " did not answer"
	}
	return "The service is healthy"
}

// Note says what the summary means for checks.
func (s *serviceView) Note() string {
	switch {
	case s.Healthy():
		return "All instances answer checks, and Redis and Postgres are available."
	case s.Degraded > 0:
		return "Each rule applies its setting for the time without Redis."
	case s.Postgres == "":
		return "Checks continue with the last configuration, and nothing can be changed."
	}
	return "Checks are answered. View the instances to see which one needs attention."
}

// readService reads the state of all instances, and asks Postgres for a sign of life.
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
	asked := time.Now()
	if d.Store.Ping(ctx) == nil {
		out.Postgres = latencyText(time.Since(asked))
	}
	return &out
}
