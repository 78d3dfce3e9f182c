package dashboard

import (
	"strings"

	"weir/internal/tenants"
)

// mostSplit is how many groups have their own part of a split; the last part is all others.
const mostSplit = 3

// splitPart is one group in the columns of a split.
type splitPart struct {
	Name   string
	Class  string
	Values []int64 // checks, by grain
}

// split draws the checks of the busiest groups over time, stacked.
type split struct {
	chart
	Parts []splitPart
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

// addTrends fills in the checks of each group by grain, and in the previous period.
func addTrends(groups []usageGroup, by string, items []tenants.UsageItem, s stretch) {
	at := map[string]*usageGroup{}
	for i := range groups {
		groups[i].Trend = make([]int64, s.count())
		at[groups[i].Name] = &groups[i]
	}
	length := s.Grain.Duration()
	for i := range items {
		item := &items[i]
		g := at[groupOf(by, item)]
		if g == nil {
			continue
		}
		n := item.Allowed + item.Denied
		if item.Start.Before(s.From) {
			g.Before += n
		} else if k := int(item.Start.Sub(s.From) / length); k < len(g.Trend) {
			g.Trend[k] += n
		}
	}
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

// splitOf stacks the first groups, and all others as one part; nil if there is nothing to compare.
func splitOf(c *chart, by string, groups []usageGroup) *split {
	if len(groups) < 2 {
		return nil
	}
	out := &split{chart: chart{stretch: c.stretch, Title: "Split by " + by}}
	sums := make([]int64, c.count())
	for i := range groups {
		g := &groups[i]
		if i <= mostSplit {
			name := g.Called(by)
			if i == mostSplit && len(groups) > mostSplit+1 {
				name = plural(int64(len(groups)-mostSplit), "other", "others")
			}
			out.Parts = append(out.Parts, splitPart{name, "part" + itoa(int64(i)), make([]int64, c.count())})
		}
		values := out.Parts[min(i, mostSplit)].Values
		for k, n := range g.Trend {
			values[k] += n
			sums[k] += n
		}
	}
	out.Bars = make([]bar, c.count())
	for i := range out.Bars {
		out.Bars[i].Start, out.Bars[i].Allowed = c.Bars[i].Start, sums[i]
	}
	return out
}

// splitColumn is one part of one column.
type splitColumn struct {
	Class string
	column
}

// Columns returns the parts of a column, from the bottom up.
func (s *split) Columns(i int, most int64) (out []splitColumn) {
	const room = deniedBottom - plotTop
	y := deniedBottom
	for _, p := range s.Parts {
		if n := p.Values[i]; n > 0 {
			height := float64(n) / float64(most) * room
			y -= height
			out = append(out, splitColumn{p.Class, column{percentage(y), percentage(height)}})
		}
	}
	return out
}

// Label describes a column in words.
func (s *split) Label(i int) string {
	texts := make([]string, 0, len(s.Parts))
	for _, p := range s.Parts {
		texts = append(texts, p.Name+" "+grouped(p.Values[i]))
	}
	return s.Clock(s.Bars[i].Start) + " UTC: " + strings.Join(texts, ", ")
}

// Summary describes the split in words.
func (s *split) Summary() string {
	texts := make([]string, 0, len(s.Parts))
	for _, p := range s.Parts {
		sum := int64(0)
		for _, n := range p.Values {
			sum += n
		}
		texts = append(texts, p.Name+" "+grouped(sum))
	}
	return s.Title + ", checks: " + strings.Join(texts, ", ")
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
