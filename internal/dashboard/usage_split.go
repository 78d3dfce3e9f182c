package dashboard

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/google/uuid"

	"weir/internal/tenants"
)

// mostSplit is how many groups have their own part of a split; the last part is all others.
const mostSplit = 3

// splitPart is one group in the columns of a chart.
type splitPart struct {
	Name    string
	Class   string
	Allowed []int64 // checks, by grain
}

// fewSummed is how many items of usage are summed up as short work.
const fewSummed = 15_000

// sumUp calls f, which sums up so many items, when it is the tenant's turn. Error: errBusy.
func (d *dashboard) sumUp(ctx context.Context, tenant uuid.UUID, items int, f func()) error {
	if items > fewSummed {
		return d.longTurns.do(ctx, tenant, f)
	}
	return d.turns.do(ctx, tenant, f)
}

// groupOf returns the value of an item by which usage is grouped.
func groupOf(by string, item *tenants.UsageItem) string {
	switch by {
	case "rule":
		return item.Rule
	case "plan":
		return item.Plan
	case "resource":
		return item.Resource
	}
	return item.Subject
}

// addTrends fills in the checks of each group by grain, and in the previous period. It returns the
// allowed checks of all other groups by grain. Only the groups that the page lists have their own
// numbers: 50,000 subjects with 500 periods each would take 400 MB.
func addTrends(groups []usageGroup, by string, items []tenants.UsageItem, s stretch) (others []int64) {
	at := map[string]*usageGroup{}
	for i := range groups {
		groups[i].Trend, groups[i].allowed = make([]int64, s.count()), make([]int64, s.count())
		at[groups[i].Name] = &groups[i]
	}
	others = make([]int64, s.count())
	length := s.Grain.Duration()
	for i := range items {
		item := &items[i]
		g, n := at[groupOf(by, item)], item.Allowed+item.Denied
		k := int(item.Start.Sub(s.From) / length)
		switch before := item.Start.Before(s.From); {
		case before && g != nil:
			g.Before += n
		case before || k >= len(others):
		case g != nil:
			g.Trend[k] += n
			g.allowed[k] += item.Allowed
		default:
			others[k] += item.Allowed
		}
	}
	return others
}

// within returns the items of a period.
func within(items []tenants.UsageItem, s stretch) (out []tenants.UsageItem) {
	for i := range items {
		if !items[i].Start.Before(s.From) && items[i].Start.Before(s.To) {
			out = append(out, items[i])
		}
	}
	return out
}

// itemsOf returns a copy of the items of one group.
func itemsOf(by, name string, items []tenants.UsageItem) (out []tenants.UsageItem) {
	for i := range items {
		if groupOf(by, &items[i]) == name {
			out = append(out, items[i])
		}
	}
	return out
}

// splitOf returns the first groups, and all others as one part; nil if there is nothing to compare.
// more is how many groups are not in the list, and others has their allowed checks.
func splitOf(s stretch, by string, groups []usageGroup, more int, others []int64) (parts []splitPart) {
	count := len(groups) + more
	if count < 2 {
		return nil
	}
	for i := range groups {
		g := &groups[i]
		if i <= mostSplit {
			name := g.Called(by)
			if i == mostSplit && count > mostSplit+1 {
				name = plural(int64(count-mostSplit), "other", "others")
			}
			parts = append(parts, splitPart{name, "part" + itoa(int64(i)), make([]int64, s.count())})
		}
		parts[min(i, mostSplit)].add(g.allowed)
	}
	if more > 0 {
		parts[mostSplit].add(others)
	}
	return parts
}

// add adds the checks of a group.
func (p *splitPart) add(allowed []int64) {
	for k, n := range allowed {
		p.Allowed[k] += n
	}
}

// splitColumn is one part of one column.
type splitColumn struct {
	Class string
	column
}

// PartColumns returns the parts of a column, from the bottom up. The first ones stand on the base,
// also on a logarithmic scale.
func (c *chart) PartColumns(i int, most int64) (out []splitColumn) {
	const space = plotBottom - plotTop
	sum := int64(0)
	for _, p := range c.Parts {
		if n := p.Allowed[i]; n > 0 {
			below := c.share(sum, most) * space
			sum += n
			top := c.share(sum, most) * space
			out = append(out, splitColumn{p.Class, column{percentage(plotBottom - top), percentage(top - below)}})
		}
	}
	return out
}

// partsOf returns the sum of the parts of a column. It may exceed the allowed checks: one that
// matches three rules counts for each.
func (c *chart) partsOf(i int) (sum int64) {
	for _, p := range c.Parts {
		sum += p.Allowed[i]
	}
	return sum
}

// Sum returns the allowed checks of the part.
func (p *splitPart) Sum() (sum int64) {
	for _, n := range p.Allowed {
		sum += n
	}
	return sum
}

// PartData returns the parts for scripts; "" without parts.
func (c *chart) PartData() string {
	type item struct {
		Name    string  `json:"name"`
		Allowed []int64 `json:"allowed"`
	}
	if len(c.Parts) == 0 {
		return ""
	}
	items := make([]item, 0, len(c.Parts))
	for _, p := range c.Parts {
		items = append(items, item{p.Name, p.Allowed})
	}
	data, _ := json.Marshal(items) // cannot fail for numbers and texts
	return string(data)
}

// trendWidth and trendHeight are the size of the line in a row.
const trendWidth, trendHeight = 96, 20

// TrendPoints returns the line of a group's checks.
func (g *usageGroup) TrendPoints() string {
	most := int64(1)
	for _, n := range g.Trend {
		most = max(most, n)
	}
	var b strings.Builder
	for i, n := range g.Trend {
		x := float64(i) * trendWidth / float64(max(len(g.Trend)-1, 1))
		b.WriteString(number(x) + "," + number(1+(trendHeight-2)*(1-float64(n)/float64(most))) + " ")
	}
	return b.String()
}

// Change compares a group with the previous period, as in "+12 %".
func (g *usageGroup) Change() string { return change(g.Allowed+g.Denied, g.Before) }
